"""Raw deflate bytes → content and the places of its blocks: zlib's inflate with Z_BLOCK, through ctypes.

The Python packages around deflate (zlib, isal, zlib-ng) inflate, but none tells where a block begins. The
bytes that come out do not hang on zlib's version: it only finds places, and content is checked by CRC-32.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from types import TracebackType

from torchkiln.errors import ToolMissing

_Z_OK, _Z_STREAM_END, _Z_BUF_ERROR = 0, 1, -5
_Z_BLOCK = 5
_RAW = -15  # window bits: no frame of zlib's or gzip's own
_BOUNDARY, _LAST, _UNUSED = 128, 64, 7  # in data_type, as zlib.h tells
_OUT = 256 << 10  # bytes of content at a time; more was not faster
_USUAL = ("libz.so.1", "libz.1.dylib")  # asked first: find_library runs a compiler or ldconfig


class Damaged(Exception):
    """The bytes are no deflate stream."""


class _Stream(ctypes.Structure):
    """z_stream of zlib.h."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    """zlib; its calls run without the GIL.

    :raises ToolMissing: the system has none.
    """
    for name in (*_USUAL, ctypes.util.find_library("z")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            library.zlibVersion.restype = ctypes.c_char_p
            return library
    raise ToolMissing(
        "zlib is not installed as a shared library; layers cannot be joined without it",
        hint="as root: apt-get install zlib1g; or build with --layer-format gzip",
    )


class BlockInflater:
    """Inflates one deflate stream after another (`reset` between), and notes where blocks begin.

    `feed` some bytes, call `step` until it returns None, feed the next, until `ended`. Positions are in
    bits from the lowest of the first fed byte, as deflate counts (RFC 1951, 3.1.1).
    """

    def __init__(self) -> None:
        self._zlib = _library()
        self._stream = _Stream()
        self._out = ctypes.create_string_buffer(_OUT)
        self._content = memoryview(self._out).cast("B")
        self._length = 0
        self._at_next = True  # a block begins with the next byte that will be fed
        self.blocks: list[int] = []
        """Where blocks begin in the fed bytes, as far as these were consumed."""
        self.ended = False
        self.unused = 0
        """Of a stream that ended: how many high bits of its last byte are not its own."""
        answer = self._zlib.inflateInit2_(
            ctypes.byref(self._stream), _RAW, self._zlib.zlibVersion(), ctypes.sizeof(_Stream)
        )
        if answer != _Z_OK:
            raise MemoryError(f"zlib's inflate cannot start: {answer}")

    def __enter__(self) -> BlockInflater:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zlib.inflateEnd(ctypes.byref(self._stream))

    def reset(self) -> None:
        """Begin a new stream."""
        self._zlib.inflateReset(ctypes.byref(self._stream))
        self.ended, self._at_next = False, True

    def feed(self, data: bytearray, start: int, stop: int) -> None:
        """Take bytes *start* to *stop*, which must stay where they are until `step` returns None."""
        self._stream.next_in = ctypes.addressof(ctypes.c_char.from_buffer(data)) + start
        self._stream.avail_in = self._length = stop - start
        self.blocks = [0] if self._at_next else []
        self._at_next = False

    @property
    def consumed(self) -> int:
        """How many of the fed bytes belong to the stream so far."""
        return self._length - int(self._stream.avail_in)

    def step(self) -> memoryview | None:
        """The next content, valid until the next call; None when the fed bytes or the stream are at an end.

        :raises Damaged: what was fed is no deflate.
        """
        stream = self._stream
        stream.next_out, stream.avail_out = ctypes.addressof(self._out), _OUT
        inflate, reference = self._zlib.inflate, ctypes.byref(stream)
        while not self.ended and stream.avail_out:
            answer = inflate(reference, _Z_BLOCK)
            if answer == _Z_BUF_ERROR:  # no progress without more input
                break
            if answer not in (_Z_OK, _Z_STREAM_END):
                raise Damaged((stream.msg or b"not deflate").decode())
            kind = stream.data_type
            if answer == _Z_STREAM_END:
                self.ended = True
            elif kind & _BOUNDARY and kind & _LAST:
                self.unused = kind & _UNUSED
            elif kind & _BOUNDARY:
                self._block_at(self.consumed * 8 - (kind & _UNUSED))
            elif not stream.avail_in and stream.avail_out:
                break
        return self._content[: _OUT - stream.avail_out] if stream.avail_out < _OUT else None

    def _block_at(self, bit: int) -> None:
        if bit == self._length * 8:
            self._at_next = True
        else:
            self.blocks.append(bit)
