"""Reads the content of a wheel's entries and checks it against the directory."""

from __future__ import annotations

from collections.abc import Iterator

from isal import igzip_lib, isal_zlib

from torchkiln.errors import BadWheel
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.entries import data_offset
from torchkiln.wheel.source import WheelFile

_READ = 1 << 18  # compressed bytes at a time
_INFLATE = 1 << 20  # most bytes of one step; limits memory


class SecondRead:
    """Reads an entry for the second time; its bytes were already downloaded."""

    def __init__(self, file: WheelFile, entry: WheelEntry) -> None:
        self._file, self._position = file, data_offset(file, entry)

    def read_exactly(self, count: int) -> bytes:
        data = self._file.at(self._position, count)
        if len(data) < count:
            raise EOFError(f"unexpected end of file: {count} bytes at {self._position}")
        self._position += count
        return data


EntryReader = WheelFile | SecondRead


def inflate(file: EntryReader, entry: WheelEntry, filename: str) -> Iterator[tuple[bytes, bytes]]:
    """The bytes of the entry as (deflate stream, content) pieces; each piece of the stream occurs once.

    Checks size and CRC-32, and that the stream ends where the entry ends: trailing bytes could form
    another gzip member.

    :raises BadWheel: the entry has a fault.
    """
    left, produced, crc = entry.compressed, 0, 0
    inflater = isal_zlib.decompressobj(-15) if entry.deflated else None
    while left:
        piece = file.read_exactly(min(left, _READ))
        left -= len(piece)
        pending, more = piece, True
        while more:
            try:
                content = inflater.decompress(pending, _INFLATE) if inflater else piece
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # the stub is wrong
                raise BadWheel(filename, f"entry {entry.name!r}: invalid compressed data: {error}") from error
            produced += len(content)
            if produced > entry.size:
                raise BadWheel(filename, f"entry {entry.name!r} inflates to more than its {entry.size} bytes")
            crc = isal_zlib.crc32(content, crc)
            yield piece, content
            piece, pending = b"", inflater.unconsumed_tail if inflater else b""
            more = inflater is not None and not inflater.eof and bool(pending or len(content) == _INFLATE)
        if inflater and inflater.eof and (left or inflater.unused_data):
            raise BadWheel(filename, f"entry {entry.name!r}: trailing data after its deflate stream")
    if inflater and not inflater.eof:
        raise BadWheel(filename, f"entry {entry.name!r}: unexpected end of its deflate stream")
    if (produced, crc) != (entry.size, entry.crc):
        raise BadWheel(filename, f"entry {entry.name!r}: bad CRC-32 or size")


def copied(file: EntryReader, entry: WheelEntry) -> Iterator[tuple[bytes, bytes]]:
    """Like `inflate`, but nothing is inflated or checked: the content of a deflated entry is b"".

    It is used for layers whose digest is in the lock: the digest proves the bytes.
    """
    left = entry.compressed
    while left:
        piece = file.read_exactly(min(left, _READ))
        left -= len(piece)
        yield piece, b"" if entry.deflated else piece


def whole(file: EntryReader, entry: WheelEntry, filename: str) -> bytes:
    """The content of a small entry.

    :raises BadWheel: the entry has a fault.
    """
    return b"".join(content for _, content in inflate(file, entry, filename))
