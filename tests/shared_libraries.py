"""Builds shared libraries with gcc, with given symbols, symbol versions and needed libraries."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Lib:
    """A shared library.

    `defines` has the defined symbols, `uses` and `weak` the symbols that it refers to (`weak`: weakly).
    `versions` has the defined symbols by symbol version, `needs` the libraries that it is linked with.
    """

    name: str
    defines: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    needs: tuple[Lib, ...] = ()


@functools.cache
def compiled(lib: Lib) -> bytes:
    """The bytes of *lib*."""
    with tempfile.TemporaryDirectory() as folder:
        return built(lib, Path(folder))


def built(lib: Lib, folder: Path) -> bytes:
    """The bytes of *lib*; writes its source and the libraries that it needs to *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, other in enumerate(lib.needs):
        (folder / f"{number}-{other.name}").write_bytes(compiled(other))
    (folder / "lib.c").write_text(_source(lib))
    (folder / "lib.map").write_text(_script(lib.versions))
    out = folder / lib.name
    script = [f"-Wl,--version-script={folder / 'lib.map'}"] if lib.versions else []
    subprocess.run(
        [
            *("gcc", "-shared", "-fPIC", "-O0", "-nostdlib", "-o", str(out), str(folder / "lib.c")),
            *(f"-Wl,-soname,{lib.name}", "-Wl,--no-as-needed", *script),
            *(str(folder / f"{number}-{other.name}") for number, other in enumerate(lib.needs)),
        ],
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


def _source(lib: Lib) -> str:
    lines = [f'void d{number}(void) __asm__("{name}");' for number, name in enumerate(lib.defines)]
    lines += [f"void d{number}(void) {{}}" for number in range(len(lib.defines))]
    lines += [f'extern char u{number}[] __asm__("{name}");' for number, name in enumerate(lib.uses)]
    lines += [
        f'extern char w{number}[] __asm__("{name}") __attribute__((weak));'
        for number, name in enumerate(lib.weak)
    ]
    taken = [f"u{number}" for number in range(len(lib.uses))] + [f"w{n}" for n in range(len(lib.weak))]
    lines.append(f"void *hold_it[] = {{{', '.join((*taken, '0'))}}};")
    return "\n".join((*lines, ""))


def _script(versions: Mapping[str, Iterable[str]]) -> str:
    return "\n".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};" if names else f"{version} {{ }};"
        for version, names in versions.items()
    )
