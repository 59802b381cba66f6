"""Decompresses an xz file in limited memory."""

from __future__ import annotations

import lzma
from typing import BinaryIO

_PIECE = 1 << 18
# Bytes; `xz -9` needs 65 MiB to decompress, but a file may need up to 4 GiB.
_MEMORY = 256 << 20


class Unxz:
    """Reads a file of one xz stream.

    :raises lzma.LZMAError: the file is not xz, is damaged, needs too much memory, or has trailing data.
    :raises EOFError: it is truncated.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)

    def read(self, size: int) -> bytes:
        """*size* bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and not self._unpacker.eof:
            packed = self._file.read(_PIECE) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not packed:
                raise EOFError("unexpected end of input")
            piece = self._unpacker.decompress(packed, max_length=size)
            size -= len(piece)
            parts.append(piece)
        if self._unpacker.eof and (self._unpacker.unused_data or self._file.read(1)):
            raise lzma.LZMAError("trailing data after the end of the xz stream")
        return b"".join(parts)
