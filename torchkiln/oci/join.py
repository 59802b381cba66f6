"""gzip of many members → gzip of one member, with the same content and without compressing anew.

A deflate stream is a sequence of blocks, of which the last says so in its first bit. With that bit cleared,
and brought to a byte's border by an empty stored block, one stream can go on where another ended: none looks
back beyond its own beginning. So the members' streams are copied, their frames dropped, their CRC-32s
combined (RFC 1951, 3.2.3; RFC 1952, 2.3). Where blocks begin only inflating can tell, so every byte of
content is seen, and compared with its member's CRC-32 and size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from isal import isal_zlib

from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci import gzip
from torchkiln.oci.zlib_blocks import BlockInflater, Damaged

_MAGIC = gzip.HEADER[:3]  # with the method, deflate
_READ = 1 << 20  # bytes of the source in memory
_EMPTY_BLOCK = b"\x00\x00\xff\xff"  # lengths of an empty stored block, whose three header bits came before
_LAST_BLOCK = b"\x03\x00"  # the shortest: fixed Huffman codes, nothing in it


class NotJoinable(Exception):
    """The source is not, from its first byte to its last, a sequence of whole gzip members."""


def join(source: BinaryIO, out: BinaryIO, *, advanced: Callable[[int], None] = lambda _: None) -> Blob:
    """Write the members of *source* to *out* as one; needs about 2 MiB of memory, whatever their length.

    :param advanced: is told, piece by piece, how many bytes of *source* were read.
    :raises NotJoinable: a member is damaged, cut off, or has optional header fields (ours never have);
        something lies behind the last. *out* is then incomplete.
    :raises ToolMissing: the system has no zlib.
    """
    window, sink, content = _Window(source, advanced), _Sink(out), _Content()
    sink.write(gzip.HEADER)
    with BlockInflater() as inflater:
        while window.need(1) or not content.members:
            _open_member(window)
            for piece in _stream(window, inflater, content):
                sink.write(piece)
            _close_member(window, content)
    sink.write(_LAST_BLOCK + gzip.trailer(content.crc, content.size))
    return Blob(
        digest=Digest(f"sha256:{sink.sha256.hexdigest()}"),
        diff_id=Digest(f"sha256:{content.sha256.hexdigest()}"),
        size=sink.size,
        unpacked=content.size,
    )


def _open_member(window: _Window) -> None:
    """Read a member's header."""
    header = window.take(len(gzip.HEADER))
    if header[: len(_MAGIC)] != _MAGIC:
        raise NotJoinable(f"what is at byte {window.member} is no gzip member")
    if header[3]:
        raise NotJoinable(f"the gzip member at byte {window.member} has optional header fields")


def _stream(window: _Window, inflater: BlockInflater, content: _Content) -> Iterator[bytes | memoryview]:
    """A member's deflate stream as it stands, but for the final bit, and going up to a byte's border."""
    inflater.reset()
    data = window.data
    while not inflater.ended:
        if not window.need(1):
            raise NotJoinable(f"the gzip member at byte {window.member} is cut off")
        start = window.start
        inflater.feed(data, start, window.stop)
        try:
            while (piece := inflater.step()) is not None:
                content.add(piece)
        except Damaged as error:
            raise NotJoinable(f"the gzip member at byte {window.member} is damaged: {error}") from error
        for bit in inflater.blocks:  # where it is not set, this changes nothing
            data[start + (bit >> 3)] &= ~(1 << (bit & 7))
        window.start += inflater.consumed
        if inflater.ended and inflater.unused:  # what stands there need not be zero
            data[window.start - 1] &= 0xFF >> inflater.unused
        yield memoryview(data)[start : window.start]
    if inflater.unused >= 3:
        yield _EMPTY_BLOCK
    elif inflater.unused:
        yield b"\x00" + _EMPTY_BLOCK


def _close_member(window: _Window, content: _Content) -> None:
    """Compare a member's trailer with what it held."""
    at = window.member
    crc, size = content.end_member()
    if window.take(8) != gzip.trailer(crc, size):
        raise NotJoinable(f"the gzip member at byte {at} is damaged: CRC-32 or size is wrong")
    window.member = window.position


class _Window:
    """The source's next bytes, in one place whose content may be changed."""

    def __init__(self, file: BinaryIO, advanced: Callable[[int], None]) -> None:
        self._file, self._advanced = file, advanced
        self._read = 0
        self.data = bytearray(_READ)
        self.start = self.stop = 0
        self.member = 0
        """Where in the source the present member began."""

    @property
    def position(self) -> int:
        """Where in the source `start` is."""
        return self._read - (self.stop - self.start)

    def need(self, count: int) -> bool:
        """Whether *count* bytes are there, read if need be."""
        while self.stop - self.start < count:
            left = self.stop - self.start
            self.data[:left] = self.data[self.start : self.stop]
            with memoryview(self.data) as view, view[left:] as room:
                got = self._file.readinto(room)  # type: ignore[attr-defined]
            if not got:
                self.start, self.stop = 0, left
                return False
            self.start, self.stop = 0, left + got
            self._read += got
            self._advanced(got)
        return True

    def take(self, count: int) -> bytes:
        """The next *count* bytes, which are header or trailer of a member."""
        if not self.need(count):
            raise NotJoinable(f"the gzip member at byte {self.member} is cut off")
        self.start += count
        return bytes(self.data[self.start - count : self.start])


class _Content:
    """What the members inflate to, summed up: of the whole, and of the member that is being read."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()
        self.crc = self.size = self.members = 0
        self._crc = self._size = 0

    def add(self, piece: memoryview) -> None:
        self.sha256.update(piece)
        self._crc = isal_zlib.crc32(piece, self._crc)
        self._size += len(piece)

    def end_member(self) -> tuple[int, int]:
        """CRC-32 and size of the member that ends here; the whole's then have it in them."""
        ended = self._crc, self._size
        self.crc = isal_zlib.crc32_combine(self.crc, *ended)
        self.size += self._size
        self.members += 1
        self._crc = self._size = 0
        return ended


class _Sink:
    """The file that is written, with its hash."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        self.sha256.update(data)
        self.size += len(data)
