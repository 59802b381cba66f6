"""Reads the dynamic symbols of a base's libraries, and of its Python or a standalone Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base.interpreter import HOME, python_name
from torchkiln.elf.dynamic import LIBRARY, Dynamic, read_dynamic
from torchkiln.elf.sections import BadElf
from torchkiln.errors import VerificationFailed
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.projects.symbols.names import is_c_library, of_python

_MOST = 64 << 20  # bytes of one file; the Python executable has 7 MB
_MOST_STANDALONE = 256 << 20  # the limit for files of the archive; Python with debugging symbols has 100 MB


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSymbols:
    """The C and C++ runtime libraries by SONAME, and the symbols of Python's C API."""

    libraries: Mapping[str, Dynamic]
    python: frozenset[str]


def read_base(blob: Path, python: str) -> BaseSymbols:
    """The symbols in the base *blob*, whose interpreter is *python*, "3.11".

    :raises VerificationFailed: *blob* is damaged.
    """
    program = f"usr/bin/python{python}"
    libraries: dict[str, Dynamic] = {}
    symbols: frozenset[str] = frozenset()

    def is_read(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return path == program or (folder == LINUX_AMD64.libraries and LIBRARY.fullmatch(name) is not None)

    for path, data in _files(blob, is_read, _MOST):
        found = _dynamic(data, program=path == program)
        if found and path == program:
            symbols = _defined(found)
        elif found and is_c_library(name := found.soname or path.rpartition("/")[2]):
            libraries[name] = found
    return BaseSymbols(libraries=libraries, python=symbols)


def read_standalone(blob: Path, version: str) -> frozenset[str]:
    """The symbols of the C API in the layer *blob* of the standalone Python *version*, "3.12.8".

    These symbols are in the executable of that Python or in its libpython.

    :raises VerificationFailed: *blob* is damaged.
    """
    name = python_name(version)
    program, library = f"{HOME}/bin/{name}", re.compile(rf"{HOME}/lib/lib{re.escape(name)}\.so[0-9.]*")

    def is_read(path: str) -> bool:
        return path == program or library.fullmatch(path) is not None

    read = (_dynamic(data, program=path == program) for path, data in _files(blob, is_read, _MOST_STANDALONE))
    return frozenset().union(*(_defined(found) for found in read if found))


def _files(blob: Path, is_read: Callable[[str], bool], most: int) -> Iterator[tuple[str, bytes]]:
    """Path and content of the files of *blob* of at most *most* bytes for which *is_read* is true."""
    try:
        with open_layer(blob) as stream:
            tar = TarReader(pieces_of(stream))
            for entry in tar:
                if entry.kind == "file" and entry.size <= most and is_read(entry.path):
                    yield entry.path, b"".join(tar.content())
    except DAMAGED as error:
        raise VerificationFailed(f"{blob.name}: {error}", hint="the cache is damaged: build again") from error


def _defined(found: Dynamic) -> frozenset[str]:
    return frozenset(name for names in found.defined.values() for name in names)


def _dynamic(data: bytes, *, program: bool) -> Dynamic | None:
    with memoryview(data) as view:
        try:
            return read_dynamic(view, program=program, keep=of_python)
        except BadElf:
            return None
