"""Find every (file, soname) below a folder that the dynamic loader cannot resolve.

All files with NEEDED entries are checked. The real loader resolves the libraries, as in ldd, because it
handles RPATH, RUNPATH, $ORIGIN, ld.so.cache and LD_LIBRARY_PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from smoke_tests.elf import Elf, read_elf


class Linkage(NamedTuple):
    """The checked files and the unresolved pairs."""

    files: int
    needed: int  # (file, soname) pairs
    unfound: tuple[tuple[str, str], ...]  # (path relative to the folder, soname) of libraries
    unfound_programs: tuple[tuple[str, str], ...]  # the same of programs, for which nothing is preloaded
    unversioned: tuple[str, ...]  # symbol versions that a found library does not have


def read_linkage(folder: Path) -> Linkage:
    """Run the loader on each ELF file of this architecture under *folder*.

    :raises AssertionError: the interpreter has no loader, or the loader fails.
    """
    own = read_elf(Path(os.path.realpath(sys.executable)))
    assert own is not None, f"{sys.executable} is not an ELF file"
    assert own.interpreter, f"{sys.executable} has no dynamic loader"
    loader = own.interpreter
    files = [(path, elf) for path, elf in _elf_files(folder) if elf.machine == own.machine]
    with_needed = [(path, elf) for path, elf in files if elf.needed]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        resolved = list(pool.map(lambda item: _resolve(loader, item[0]), with_needed))
    unfound: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    unversioned: set[str] = set()
    for (path, elf), (found, errors) in zip(with_needed, resolved, strict=True):
        name = str(path.relative_to(folder))
        program = elf.interpreter is not None
        unfound[program] += [(name, soname) for soname in elf.needed if soname not in found]
        unversioned.update(errors)
    pairs = sum(len(elf.needed) for _, elf in with_needed)
    return Linkage(
        files=len(files),
        needed=pairs,
        unfound=tuple(sorted(unfound[False])),
        unfound_programs=tuple(sorted(unfound[True])),
        unversioned=tuple(sorted(unversioned)),
    )


def sonames(paths: Collection[str]) -> set[str]:
    """The names by which these loaded files satisfy a NEEDED entry: the SONAME, or else the file name."""
    names = set()
    for path in map(Path, paths):
        elf = read_elf(path) if path.is_file() else None
        if elf:
            names.add(elf.soname or path.name)
    return names


def _elf_files(folder: Path) -> Iterator[tuple[Path, Elf]]:
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(where, name)
            if not path.is_symlink() and path.is_file() and (elf := read_elf(path)):
                yield path, elf


def _resolve(loader: str, path: Path) -> tuple[set[str], list[str]]:
    """The sonames that the loader finds for *path*, and its messages on missing symbol versions."""
    done = subprocess.run(
        [loader, str(path)],
        # As ldd does; with `--list` the loader prints an error instead of a list if a library is missing.
        env=os.environ | {"LD_TRACE_LOADED_OBJECTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = set()
    for line in done.stdout.splitlines():
        soname, separator, path_found = line.strip().partition(" => ")
        if separator and not path_found.startswith("not found"):
            found.add(soname)
        elif not separator and soname.startswith("/"):
            found |= {soname.split()[0], Path(soname.split()[0]).name}
    errors = [line for line in done.stderr.splitlines() if "version `" in line]
    assert done.returncode == 0 or found or errors, f"{loader} {path}: {done.stderr.strip()}"
    return found, errors
