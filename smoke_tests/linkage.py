"""Folder -> every (file, soname) that the loader does not find by itself.

Which files to ask about comes from their own NEEDED entries; where a library is found is left to the real
loader (as ldd does), for RPATH, RUNPATH, $ORIGIN, ld.so.cache and LD_LIBRARY_PATH are its business.
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
    """What was looked at and what is open."""

    files: int
    needed: int  # (file, soname) pairs
    unfound: tuple[tuple[str, str], ...]  # (path relative to the folder, soname), of libraries
    unfound_programs: tuple[tuple[str, str], ...]  # the same of programs, which nobody loads anything for
    unversioned: tuple[str, ...]  # symbol versions that a found library does not have


def read_linkage(folder: Path) -> Linkage:
    """Ask the loader about each ELF file under *folder* that is for this machine.

    :raises AssertionError: the interpreter names no loader, or the loader gives no answer.
    """
    own = read_elf(Path(os.path.realpath(sys.executable)))
    assert own is not None, f"{sys.executable} is no ELF file"
    assert own.interpreter, f"{sys.executable} names no loader"
    loader = own.interpreter
    files = [(path, elf) for path, elf in _elf_files(folder) if elf.machine == own.machine]
    asking = [(path, elf) for path, elf in files if elf.needed]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda item: _ask(loader, item[0]), asking))
    unfound: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    unversioned: set[str] = set()
    for (path, elf), (found, complaints) in zip(asking, answers, strict=True):
        name = str(path.relative_to(folder))
        program = elf.interpreter is not None
        unfound[program] += [(name, soname) for soname in elf.needed if soname not in found]
        unversioned.update(complaints)
    pairs = sum(len(elf.needed) for _, elf in asking)
    return Linkage(
        files=len(files),
        needed=pairs,
        unfound=tuple(sorted(unfound[False])),
        unfound_programs=tuple(sorted(unfound[True])),
        unversioned=tuple(sorted(unversioned)),
    )


def sonames(paths: Collection[str]) -> set[str]:
    """The names under which these loaded files satisfy a NEEDED: their SONAME, else their file name."""
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


def _ask(loader: str, path: Path) -> tuple[set[str], list[str]]:
    """The sonames that the loader finds for *path*, and what it says of missing symbol versions."""
    done = subprocess.run(
        [loader, str(path)],
        # What ldd sets: with `--list` a program that lacks a library ends in an error, not in a list.
        env=os.environ | {"LD_TRACE_LOADED_OBJECTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = set()
    for line in done.stdout.splitlines():
        soname, arrow, where = line.strip().partition(" => ")
        if arrow and not where.startswith("not found"):
            found.add(soname)
        elif not arrow and soname.startswith("/"):
            found |= {soname.split()[0], Path(soname.split()[0]).name}
    complaints = [line for line in done.stderr.splitlines() if "version `" in line]
    assert done.returncode == 0 or found or complaints, f"{loader} {path}: {done.stderr.strip()}"
    return found, complaints
