"""Valid and broken zstd frames of all kinds, made by the zstd program or byte by byte, not by torchkiln."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.needs import tool

MAGIC = b"\x28\xb5\x2f\xfd"
NOISE_LIMIT = 128 << 10  # bytes of one block
CHECKSUM = 4  # bytes at a frame's end


def program(data: bytes, *options: str) -> bytes:
    """*data*, compressed by the zstd program, or decompressed with `-d`; skips if it is not installed."""
    tool("zstd")
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, capture_output=True, check=True).stdout


def skippable(data: bytes, kind: int = 0) -> bytes:
    """A skippable frame (RFC 8878, 3.1.2)."""
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


def raw_frame(data: bytes, *, content_size: int | None = None, window_log: int | None = None) -> bytes:
    """A frame of one raw block, with the given content size and window, if any.

    RFC 8878, 3.1.1: a frame without a window is a single segment, which must have a content size.
    """
    if window_log is None:
        head = bytes([0b11_1_00000]) + struct.pack("<Q", len(data) if content_size is None else content_size)
    else:
        head = bytes([0b00_0_00000 if content_size is None else 0b11_0_00000, window_log - 10 << 3])
        head += b"" if content_size is None else struct.pack("<Q", content_size)
    return MAGIC + head + struct.pack("<I", len(data) << 3 | 1)[:3] + data


def run_frame(blocks: int) -> bytes:
    """A frame of zeros, in which each block of four bytes gives 128 KiB."""
    block = struct.pack("<I", NOISE_LIMIT << 3 | 0b010)[:3] + b"\0"
    return MAGIC + bytes([0, 10 << 3]) + block * blocks + b"\x01\0\0"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of blob: how it is packed into frames, and the error that a reader must report."""

    pack: Callable[[bytes], bytes]
    fault: str = ""  # empty if the blob can be read


SHAPES: Mapping[str, Shape] = {
    "a frame of the zstd program": Shape(pack=lambda tar: program(tar, "-19")),
    "without length and checksum": Shape(pack=lambda tar: program(tar, "--no-check", "--no-content-size")),
    "a frame of several threads": Shape(pack=lambda tar: program(tar, "-T4")),
    "a window of 128 MiB": Shape(pack=lambda tar: program(tar, "--long=27", "--no-content-size")),
    "several frames": Shape(pack=lambda tar: program(tar[:100]) + program(tar[100:600]) + program(tar[600:])),
    "an empty frame": Shape(pack=lambda tar: program(tar) + program(b"")),
    "skippable frames": Shape(
        pack=lambda tar: skippable(b"?" * 9) + program(tar) + skippable(b"", 15) + skippable(MAGIC * 1000)
    ),
    "a raw block": Shape(pack=raw_frame),
    "empty data": Shape(pack=lambda tar: b"", fault="does not end with two zero blocks"),
    "truncated": Shape(pack=lambda tar: program(tar)[:-9], fault="the zstd frame at byte 0 is truncated"),
    "without its checksum": Shape(
        pack=lambda tar: program(tar)[:-CHECKSUM], fault="the zstd frame at byte 0 is truncated"
    ),
    "truncated in the second frame": Shape(
        pack=lambda tar: program(tar) + program(tar)[:7],
        fault=r"the zstd frame at byte [1-9]\d+ is truncated",
    ),
    "truncated in a skippable frame": Shape(
        pack=lambda tar: program(tar) + skippable(b"x" * 9)[:-1],
        fault=r"the zstd frame at byte [1-9]\d+ is truncated",
    ),
    "a wrong checksum": Shape(
        pack=lambda tar: program(tar)[:-CHECKSUM] + bytes(CHECKSUM),
        fault="the zstd frame at byte 0 is damaged",
    ),
    "more than declared": Shape(
        pack=lambda tar: raw_frame(tar, content_size=len(tar) - 1, window_log=20),
        fault="the zstd frame at byte 0 is damaged",
    ),
    "less than declared": Shape(
        pack=lambda tar: raw_frame(tar, content_size=len(tar) + 1, window_log=20),
        fault="the zstd frame at byte 0 is damaged",
    ),
    "a huge window": Shape(
        pack=lambda tar: raw_frame(tar, window_log=28), fault="the zstd frame at byte 0 is damaged"
    ),
    "a huge segment": Shape(
        pack=lambda tar: raw_frame(tar, content_size=1 << 40), fault="the zstd frame at byte 0 is damaged"
    ),
    "trailing garbage": Shape(
        pack=lambda tar: program(tar) + b"garbage", fault=r"trailing data at byte [1-9]\d+: not a zstd frame"
    ),
    "trailing zeros": Shape(
        pack=lambda tar: program(tar) + bytes(9), fault=r"trailing data at byte [1-9]\d+: not a zstd frame"
    ),
    "one trailing byte": Shape(
        pack=lambda tar: program(tar) + MAGIC[:1], fault=r"trailing data at byte [1-9]\d+: not a zstd frame"
    ),
    "trailing gzip member": Shape(
        pack=lambda tar: program(tar) + b"\x1f\x8b\x08\0",
        fault=r"trailing data at byte [1-9]\d+: not a zstd frame",
    ),
    "a dictionary": Shape(
        pack=lambda tar: MAGIC + b"\x01\x50\x07" + program(tar)[6:],
        fault="the zstd frame at byte 0 is damaged",
    ),
}
