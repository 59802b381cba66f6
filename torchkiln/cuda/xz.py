"""An xz file -> what is in it, read once, in order, in bounded memory."""

from __future__ import annotations

import lzma
from typing import BinaryIO

_PIECE = 1 << 18
# `xz -9` needs 65 MiB to unpack; a file may ask for 4 GiB.
_MEMORY = 256 << 20


class Unxz:
    """Reads one xz stream, behind which nothing may stand.

    :raises lzma.LZMAError: it is none, is damaged, or wants too much memory.
    :raises EOFError: it is cut off.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)

    def read(self, size: int) -> bytes:
        """As a file: *size* bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and not self._unpacker.eof:
            packed = self._file.read(_PIECE) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not packed:
                raise EOFError("it is cut off")
            piece = self._unpacker.decompress(packed, max_length=size)
            size -= len(piece)
            parts.append(piece)
        if self._unpacker.eof and (self._unpacker.unused_data or self._file.read(1)):
            raise lzma.LZMAError("bytes stand behind its end")
        return b"".join(parts)
