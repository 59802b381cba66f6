"""Reads the dynamic symbols of the libraries in a wheel on disk; the wheel is not trusted.

A large library is decompressed without keeping all of it: its symbols are usually at its beginning, or at its
end if a tool has changed them. If the section table names another place, the library is decompressed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path

from torchkiln.elf.dynamic import LIBRARY, Dynamic, parts_of, read_dynamic
from torchkiln.elf.sections import BadElf, is_elf, landmarks
from torchkiln.errors import BadWheel
from torchkiln.projects.symbols.fit import is_claimed
from torchkiln.wheel.content import SecondRead, inflate
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.entries import entries
from torchkiln.wheel.source import WheelFile

_START = 1 << 16  # bytes at the beginning of a library, with the program headers
_KEPT = 32 << 20  # bytes at the beginning and at the end of a library that are kept
_LONGEST = 32 << 20  # bytes of a section table or a dynamic section
_MOST = 8 << 30  # bytes of a library; libtorch_cuda.so of 2.7.1 has 985 MB
_MOST_PARTS = 160 << 20  # bytes of the parts with symbols

Pieces = Callable[[], Iterable[bytes]]
Span = tuple[int, int]


def library_sizes(path: Path, filename: str) -> dict[str, int]:
    """The files of the wheel at *path* that have the name of a shared library, with their sizes.

    :raises BadWheel: its directory is malformed.
    """
    return {entry.name: entry.size for entry in _libraries(path, path.stat().st_size, filename)}


def read_libraries(path: Path, filename: str, only: str = "") -> Iterator[tuple[str, Dynamic]]:
    """Path and dynamic symbols of each shared library for x86-64 in the wheel at *path*.

    Files that are malformed, or for another machine, are left out: the loader does not load them, either.

    :param only: the path of one library; "": all.
    :raises BadWheel: the wheel is malformed.
    """
    with WheelFile(path, path.stat().st_size) as file:
        for entry in _libraries(path, file.size, filename):
            if entry.size <= _MOST and only in ("", entry.name):
                found = library_in(partial(_content, file, entry, filename), entry.size, is_claimed)
                if found:
                    yield entry.name, found


def library_in(pieces: Pieces, size: int, keep: Callable[[str], bool]) -> Dynamic | None:
    """The dynamic symbols of a library of *size* bytes; None: the library is malformed, or not for x86-64.

    :param pieces: returns the bytes of the library from the beginning; called again if the bytes are needed
        twice.
    """
    try:
        parts = _likely_parts(pieces(), size)
        if parts is None:
            return None
        wanted = parts_of(parts)
        if sum(stop - start for start, stop in wanted) > _MOST_PARTS:
            return None
        if not all(map(parts.has, wanted)):
            parts = _Parts(size, [*parts.whole, *_cut(pieces(), wanted)])
        return read_dynamic(parts, keep=keep)
    except BadElf:
        return None


class _Parts:
    """Parts of a file, each with its offset."""

    def __init__(self, size: int, parts: Iterable[tuple[int, bytes]]) -> None:
        self._size, self.whole = size, [*parts]

    def __len__(self) -> int:
        return self._size

    def has(self, span: Span) -> bool:
        """Whether one of the parts has all of *span*."""
        return self._find(span) is not None

    def __getitem__(self, span: slice, /) -> memoryview:
        start, stop, _ = span.indices(self._size)
        found = self._find((start, stop))
        if found is None:
            raise BadElf("a part of the file that the section table does not name", start)
        return memoryview(found[1])[start - found[0] : stop - found[0]]

    def _find(self, span: Span) -> tuple[int, bytes] | None:
        return next(
            (part for part in self.whole if part[0] <= span[0] and span[1] <= part[0] + len(part[1])), None
        )


def _likely_parts(pieces: Iterable[bytes], size: int) -> _Parts | None:
    """The parts of a library that usually contain its symbols; None: not ELF, or a part is too large."""
    stream, head = iter(pieces), b""
    for piece in stream:
        head += piece
        if len(head) >= _START:
            break
    if not is_elf(head):
        return None
    found = landmarks(head)
    if any(stop > size or stop - start > _LONGEST for start, stop in found):
        return None
    spans = [(0, min(_KEPT, size)), (max(0, size - _KEPT), size), *found]
    return _Parts(size, _cut(chain([head], stream), spans))


def _cut(pieces: Iterable[bytes], spans: Sequence[Span]) -> list[tuple[int, bytes]]:
    """The bytes of *spans*."""
    found = [bytearray() for _ in spans]
    last, at = max(stop for _, stop in spans), 0
    for piece in pieces:
        for part, (start, stop) in zip(found, spans, strict=True):
            if start < at + len(piece) and at < stop:
                part += piece[max(0, start - at) : stop - at]
        at += len(piece)
        if at >= last:
            break
    return [(start, bytes(part)) for (start, _), part in zip(spans, found, strict=True)]


@cache
def _libraries(path: Path, size: int, filename: str) -> tuple[WheelEntry, ...]:
    """The entries named like a shared library; cached, because torch's wheel has 11,000 entries."""

    with WheelFile(path, size) as file:
        found = entries(file, filename)
    return tuple(entry for entry in found if LIBRARY.fullmatch(entry.name.rpartition("/")[2]))


def _content(file: WheelFile, entry: WheelEntry, filename: str) -> Iterator[bytes]:
    try:
        for _, content in inflate(SecondRead(file, entry), entry, filename):
            yield content
    except EOFError as error:
        raise BadWheel(filename, f"entry {entry.name!r}: {error}") from error
