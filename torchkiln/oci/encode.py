"""Compresses a tar to a gzip blob with one pinned encoder.

Layers that are not wheels (base, toolkit, overlay) and changed files have no deflate streams to copy, so they
are compressed here. The same tar gives the same bytes on every machine: it is cut into members of a fixed
length, and each is compressed by the libdeflate in the PyPI package `deflate`, whose output does not depend
on the processor, the system's zlib or the number of threads.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import deflate

from torchkiln.errors import ToolMissing
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci.tar_reader import Stream, read_fully
from torchkiln.util.places import HOW_TO_INSTALL

LEVEL = 6
"""The compression level; the highest is 12.

The base (510 MB) on two cores: level 3: 2.4 s, 180 MB; 6: 3.5 s, 174 MB; 9: 10 s, 172.5 MB.
"""

MEMBER = 4 << 20
"""Bytes of tar in a gzip member. With 1 MiB, blobs are 0.2 % larger; with more than 4 MiB, not smaller."""

_PINNED = "0.9.0"

ENCODER = f"libdeflate {_PINNED} level {LEVEL}, members of {MEMBER >> 20} MiB"
"""The encoder's name in locks; it changes with everything that changes the bytes."""


def encode(tar: Stream | Path, out: Path) -> Blob:
    """Compress *tar* into the file *out*; needs about 40 MiB of memory for any length.

    :raises ToolMissing: another version of the encoder is installed.
    :raises OSError: reading or writing failed; *out* is incomplete.
    """
    if isinstance(tar, Path):
        with tar.open("rb") as stream:
            return encode(stream, out)
    with out.open("wb") as sink:
        return _encode(tar, sink.write)


def encode_bytes(tar: bytes) -> tuple[bytes, Blob]:
    """`encode` in memory."""
    blob = bytearray()
    encoded = _encode(io.BytesIO(tar), blob.extend)
    return bytes(blob), encoded


def members(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Each of *pieces* (at most `MEMBER` bytes) and the gzip member made of it; they are made in parallel.

    :raises ToolMissing: another version of the encoder is installed.
    """
    if deflate.__version__ != _PINNED:
        raise ToolMissing(
            f"deflate {_PINNED} is required, but {deflate.__version__} is installed", hint=HOW_TO_INSTALL
        )
    workers = min(os.cpu_count() or 1, 4)
    in_flight: deque[tuple[bytes, Future[bytes]]] = deque()
    with ThreadPoolExecutor(workers) as pool:  # libdeflate runs without the GIL
        for piece in pieces:
            in_flight.append((piece, pool.submit(_member, piece)))
            if len(in_flight) > workers + 1:
                first, member = in_flight.popleft()
                yield first, member.result()
        while in_flight:
            first, member = in_flight.popleft()
            yield first, member.result()


def _encode(tar: Stream, write: Callable[[bytes], object]) -> Blob:
    tar_hash, blob_hash = hashlib.sha256(), hashlib.sha256()
    unpacked = size = 0
    for piece, member in members(_pieces(tar)):
        tar_hash.update(piece)
        unpacked += len(piece)
        blob_hash.update(member)
        size += len(member)
        write(member)
    return Blob(
        digest=Digest(f"sha256:{blob_hash.hexdigest()}"),
        diff_id=Digest(f"sha256:{tar_hash.hexdigest()}"),
        size=size,
        unpacked=unpacked,
    )


def deflated(data: bytes) -> bytes:
    """*data* as one raw deflate stream, without a gzip header."""
    return bytes(deflate.deflate_compress(data, LEVEL))


def _pieces(tar: Stream) -> Iterator[bytes]:
    """*tar* in pieces for `members`; an empty tar gives one empty piece."""
    yield read_fully(tar, MEMBER)
    while piece := read_fully(tar, MEMBER):
        yield piece


def _member(piece: bytes) -> bytes:
    if len(piece) == MEMBER and piece == bytes(MEMBER):
        return _member_of_zeros()
    return bytes(deflate.gzip_compress(piece, LEVEL))


@cache
def _member_of_zeros() -> bytes:
    """The member of `MEMBER` zeros, of which cut libraries have many."""
    return bytes(deflate.gzip_compress(bytes(MEMBER), LEVEL))
