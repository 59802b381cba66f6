"""Writes gzip members (RFC 1952); a layer blob is a sequence of them.

The header has no name, comment, extra field or time: some readers fail on the first three, and a digest must
not depend on the time. Nothing is compressed: `stored` writes stored blocks, so its bytes do not depend on
the version of a compressor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from isal import isal_zlib

HEADER = b"\x1f\x8b\x08\x00" + b"\x00" * 4 + b"\x00\xff"  # deflate, no flags, no time, OS unknown
_BLOCK = 0xFFFF  # most bytes of a stored block


def trailer(crc: int, size: int) -> bytes:
    """The end of a member whose content has *crc* (CRC-32) and *size* bytes."""
    return struct.pack("<II", crc, size & 0xFFFFFFFF)


def stored_blocks(data: bytes | memoryview, *, last: bool) -> Iterator[bytes | memoryview]:
    """*data* as stored deflate blocks; *last* marks the final one."""
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK):
        part = view[start : start + _BLOCK]
        final = last and start + _BLOCK >= len(view)
        yield struct.pack("<BHH", final, len(part), len(part) ^ 0xFFFF)
        yield part
    if last and not view:
        yield b"\x01\x00\x00\xff\xff"


def stored(data: bytes | memoryview) -> bytes:
    """*data* as one gzip member, uncompressed."""
    return b"".join((HEADER, *stored_blocks(data, last=True), trailer(isal_zlib.crc32(data), len(data))))
