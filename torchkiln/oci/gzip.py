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


def stored(data: bytes | memoryview) -> bytes:
    """*data* as one gzip member, uncompressed."""
    return b"".join((HEADER, *_stored_blocks(data), trailer(isal_zlib.crc32(data), len(data))))


def _stored_blocks(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """*data* as stored deflate blocks: at least one, and the last one is marked."""
    view = memoryview(data)
    for start in range(0, max(len(view), 1), _BLOCK):
        part = view[start : start + _BLOCK]
        yield struct.pack("<BHH", start + _BLOCK >= len(view), len(part), len(part) ^ 0xFFFF)
        yield part
