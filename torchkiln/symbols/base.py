"""Reads the dynamic symbols of Python and of the libraries in a base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.elf.dynamic import LIBRARY, Dynamic, read_dynamic
from torchkiln.elf.sections import BadElf
from torchkiln.errors import VerificationFailed
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.symbols.names import is_c_library, of_python

_MOST = 64 << 20  # bytes of one file; Python has seven million


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSymbols:
    """The libraries of the compiler by SONAME, and the symbols of Python's C API."""

    libraries: Mapping[str, Dynamic]
    python: frozenset[str]


def read_base(blob: Path, python: str) -> BaseSymbols:
    """The symbols in the base *blob*, whose interpreter is *python*, "3.11".

    :raises VerificationFailed: it is damaged.
    """
    program = f"usr/bin/python{python}"
    libraries: dict[str, Dynamic] = {}
    symbols: frozenset[str] = frozenset()
    try:
        with open_layer(blob) as stream:
            tar = TarReader(pieces_of(stream))
            for entry in tar:
                folder, _, name = entry.path.rpartition("/")
                is_library = folder == LINUX_AMD64.libraries and LIBRARY.fullmatch(name)
                if entry.kind != "file" or entry.size > _MOST or not (is_library or entry.path == program):
                    continue
                found = _dynamic(b"".join(tar.content()), program=entry.path == program)
                if found and entry.path == program:
                    symbols = frozenset(name for names in found.defined.values() for name in names)
                elif found and is_c_library(found.soname or name):
                    libraries[found.soname or name] = found
    except DAMAGED as error:
        raise VerificationFailed(f"{blob.name}: {error}", hint="the cache is damaged: build again") from error
    return BaseSymbols(libraries=libraries, python=symbols)


def _dynamic(data: bytes, *, program: bool) -> Dynamic | None:
    with memoryview(data) as view:
        try:
            return read_dynamic(view, program=program, keep=of_python)
        except BadElf:
            return None
