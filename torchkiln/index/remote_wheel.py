"""Reads files of a wheel on an index by range requests: METADATA of a 1 GB wheel takes 1 to 2 MB.

The wheel is not trusted: at most a fixed number of bytes is read, and nothing is cached.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import zipfile
import zlib
from typing import Any

from torchkiln.errors import BuildFailed
from torchkiln.index.session import TOTAL, IndexSession, byte_count, get, http_error, request
from torchkiln.index.settings import redact
from torchkiln.model.index import FileAt

_BLOCK = 1 << 18  # bytes; the directory of torch's wheel takes about six blocks
_MOST = 24  # blocks of one wheel, without those of a larger file
_END = struct.Struct("<4s4xHHLL")  # of a zip: signature, entries (twice), size and offset of the directory
_DIRECTORY = threading.Lock()  # one directory at a time: it takes twelve times its size in memory
_NO_RANGES = "torchkiln reads METADATA by range requests; use an index that supports them"


class NoRanges(BuildFailed):
    """The server does not support range requests."""


def file_in(session: IndexSession, wheel: FileAt, path: re.Pattern[str], limit: int) -> bytes | None:
    """The file of *wheel* whose whole path matches *path*; None: there is none.

    :param limit: most bytes of the file.
    :raises NoRanges: the server does not support range requests.
    :raises BuildFailed: the file cannot be read or is larger, the URL is not that of a wheel, or the wheel's
        size differs from that on the page.
    """
    with session.deadlines.within(TOTAL):
        return _file_in(session, wheel, path, limit)


def _file_in(session: IndexSession, wheel: FileAt, path: re.Pattern[str], limit: int) -> bytes | None:
    try:
        remote = _RemoteFile(session, wheel, _MOST + limit // _BLOCK)
        remote.fetch_directory()
        with _DIRECTORY:
            archive = zipfile.ZipFile(io.BufferedReader(remote))
            entries = [entry for entry in archive.infolist() if path.fullmatch(entry.filename)]
            archive.filelist.clear()
            archive.NameToInfo.clear()
        if not entries:
            return None
        name = entries[0].filename.rpartition("/")[2]
        if len(entries) > 1:
            raise _invalid_wheel(wheel, f"more than one {name}")
        with archive, archive.open(entries[0]) as file:
            data = file.read(limit + 1)
    # zipfile raises NotImplementedError for an unknown compression, RuntimeError for an encrypted file.
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise _invalid_wheel(wheel, str(error) or type(error).__name__) from error
    if len(data) > limit:
        raise _invalid_wheel(wheel, f"{name} has more than {limit} bytes")
    return data


def size_mismatch(wheel: FileAt, size: int) -> BuildFailed:
    """The error if the size on the server differs from that on the page."""
    return BuildFailed(
        f"{wheel.filename}: size mismatch: {size} bytes on the server, {wheel.size} on the index's page",
        hint="the index is at fault; use another one",
    )


def _invalid_wheel(wheel: FileAt, why: str) -> BuildFailed:
    return BuildFailed(
        f"{wheel.filename}: invalid wheel: {why[:200]}",
        hint="the file on the index is malformed; use another index",
    )


class _RemoteFile(io.RawIOBase):
    """A seekable file over HTTP, read in whole blocks, each once."""

    def __init__(self, session: IndexSession, wheel: FileAt, most: int) -> None:
        self._session, self._wheel, self._at, self._most = session, wheel, 0, most
        self._blocks: dict[int, bytes] = {}
        self._size = self._read_size()
        if wheel.size is not None and wheel.size != self._size:
            raise size_mismatch(wheel, self._size)

    def fetch_directory(self) -> None:
        """Fetch the blocks of the zip directory, if the end of the file says where it is."""
        last = max(self._size - 1, 0) // _BLOCK
        tail = self._block(last) if self._size else b""
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) - at < _END.size:
            return
        size, offset = _END.unpack_from(tail, at)[3:]
        if offset + size <= self._size:
            for number in range(offset // _BLOCK, (offset + size) // _BLOCK + 1):
                self._block(number)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise ValueError("negative offset")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        number, offset = divmod(self._at, _BLOCK)
        if self._at >= self._size:
            return 0
        part = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _read_size(self) -> int:
        url = self._wheel.url
        with request(self._session, "GET", url, headers=_range(0, 0), stream=True) as response:
            if response.status_code == 200:
                raise NoRanges(f"{redact(url)}: no support for range requests", hint=_NO_RANGES)
            if response.status_code != 206:
                raise http_error(url, response.status_code)
            size = byte_count(response.headers.get("Content-Range", "").rpartition("/")[2])
        if size is None:
            raise BuildFailed(f"{redact(url)}: the server does not send the file size", hint=_NO_RANGES)
        return size

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            if len(self._blocks) == self._most:
                raise ValueError(f"its directory and the file take more than {self._most * _BLOCK >> 20} MiB")
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, self._size) - 1
            response, data = get(self._session, self._wheel.url, _BLOCK, headers=_range(first, last))
            if response.status_code not in (200, 206):
                raise http_error(self._wheel.url, response.status_code)
            if response.status_code != 206 or len(data) != last - first + 1:
                raise BuildFailed(
                    f"{redact(self._wheel.url)}: the server sent a different range than requested",
                    hint=_NO_RANGES,
                )
            self._blocks[number] = data
        return self._blocks[number]


def _range(first: int, last: int) -> dict[str, str]:
    """Headers for a range. identity: the offsets are those of the file, not of a compressed response."""
    return {"Accept-Encoding": "identity", "Range": f"bytes={first}-{last}"}
