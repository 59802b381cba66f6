"""Find the files with device code in a folder, and those that this process has loaded."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from smoke_tests.elf import sections
from smoke_tests.fatbins import SECTIONS

_OTHERS = {".py", ".pyc", ".pyi", ".h", ".hpp", ".cuh", ".txt", ".json", ".a"}


def with_device_code(site: Path, prefixes: tuple[str, ...] = ("",)) -> list[Path]:
    """The ELF files below *site* that have device code in the linker's sections; only those in packages whose
    names start with one of *prefixes*."""
    packages = (path for path in site.iterdir() if path.name.startswith(prefixes))
    return sorted(path for package in packages for path in _files(package) if _has_device_code(path))


def mapped() -> set[str]:
    """The real paths of the files in this process's memory."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return {os.path.realpath(path) for path in paths}


def _files(package: Path) -> list[Path]:
    found = [Path(where, name) for where, _, names in os.walk(package) for name in names]
    found = found or [package]
    return [path for path in found if path.suffix not in _OTHERS and path.is_file() and not path.is_symlink()]


def _has_device_code(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
        if os.fstat(file.fileno()).st_size < 64:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(name in SECTIONS and size for name, _, size in sections(data))
