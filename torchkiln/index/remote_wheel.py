"""A wheel on an index → its METADATA, by range requests: of a gigabyte one or two megabytes are fetched.

Others wrote the wheel: what is read of it is bounded, and nothing of it is kept.
"""

from __future__ import annotations

import io
import struct
import threading
import zipfile
import zlib
from typing import Any

from torchkiln.errors import BuildFailed
from torchkiln.index.session import PATIENCE, Session, get, persist, refused
from torchkiln.index.settings import redact
from torchkiln.model.index import METADATA_LIMIT, FileAt, WheelMetadata, read_metadata

_BLOCK = 1 << 18  # bytes; the directory of torch's wheel takes about six blocks
_MOST = 24  # blocks of one wheel
_END = struct.Struct("<4s4xHHLL")  # of a zip: signature, entries (twice), size and offset of the directory
_ONE = threading.Lock()  # a directory takes twelve times its size in memory: one at a time is read
_NO_RANGES = "METADATA is read by range requests; use an index that answers them"


class NoRanges(BuildFailed):
    """The server does not answer range requests."""


def metadata_of(session: Session, wheel: FileAt) -> WheelMetadata:
    """What METADATA of *wheel* tells.

    :raises BuildFailed: the index gives no lasting answer or no ranges, or it is no wheel.
    """
    try:
        return read_metadata(metadata_bytes(session, wheel))
    except ValueError as error:
        raise _no_wheel(wheel, str(error)) from error


def metadata_bytes(session: Session, wheel: FileAt) -> bytes:
    """METADATA of *wheel*, as it stands in it.

    :raises NoRanges: the server does not answer range requests.
    :raises BuildFailed: the index gives no lasting answer, it is no wheel, or of another size than was told.
    """
    with session.deadlines.within(PATIENCE):
        return _metadata_bytes(session, wheel)


def _metadata_bytes(session: Session, wheel: FileAt) -> bytes:
    try:
        remote = _Remote(session, wheel)
        remote.fetch_directory()
        with _ONE:
            archive = zipfile.ZipFile(io.BufferedReader(remote))
            listed = [one for one in archive.infolist() if one.filename.endswith(".dist-info/METADATA")]
            archive.filelist.clear()
            archive.NameToInfo.clear()
        inside = [one for one in listed if one.filename.count("/") == 1]
        if len(inside) != 1:
            raise _no_wheel(wheel, "it has no METADATA" if not inside else "it has METADATA twice")
        with archive, archive.open(inside[0]) as file:
            data = file.read(METADATA_LIMIT + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise _no_wheel(wheel, str(error) or type(error).__name__) from error
    if len(data) > METADATA_LIMIT:
        raise _no_wheel(wheel, f"METADATA has more than {METADATA_LIMIT} bytes")
    return data


def other_size(wheel: FileAt, size: int) -> BuildFailed:
    """The error for a server whose file has another size than the page told."""
    return BuildFailed(
        f"{wheel.filename}: its size is {size} bytes on the server, {wheel.size} on the index's page",
        hint="the index is at fault; try another one",
    )


def _no_wheel(wheel: FileAt, why: str) -> BuildFailed:
    return BuildFailed(
        f"{wheel.filename}: not a wheel: {why[:200]}",
        hint="the file on the index is malformed; try another index",
    )


class _Remote(io.RawIOBase):
    """A seekable file behind HTTP, read in whole blocks, each once."""

    def __init__(self, session: Session, wheel: FileAt) -> None:
        self._session, self._wheel, self._at = session, wheel, 0
        self._blocks: dict[int, bytes] = {}
        self._size = self._measured()
        if wheel.size is not None and wheel.size != self._size:
            raise other_size(wheel, self._size)

    def fetch_directory(self) -> None:
        """Fetch the blocks of the zip's directory, as far as its end tells where that is."""
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
            raise ValueError("it points before its own beginning")
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

    def _measured(self) -> int:
        """The file's size; what the page tells of it is not needed."""
        url = self._wheel.url
        with persist(self._session, "GET", url, headers=_range(0, 0), stream=True) as answer:
            if answer.status_code == 200:
                raise NoRanges(f"{redact(url)}: the server answers no ranges", hint=_NO_RANGES)
            if answer.status_code != 206:
                raise refused(url, answer.status_code)
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not (total.isascii() and total.isdigit() and len(total) < 16):
            raise BuildFailed(f"{redact(url)}: the server tells no size", hint=_NO_RANGES)
        return int(total)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            if len(self._blocks) == _MOST:
                raise ValueError(f"its directory and METADATA take more than {_MOST * _BLOCK >> 20} MiB")
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, self._size) - 1
            answer, data = get(self._session, self._wheel.url, _BLOCK, headers=_range(first, last))
            if answer.status_code != 206 or len(data) != last - first + 1:
                raise BuildFailed(
                    f"{redact(self._wheel.url)}: asked for a range, got another", hint=_NO_RANGES
                )
            self._blocks[number] = data
        return self._blocks[number]


def _range(first: int, last: int) -> dict[str, str]:
    """Identity: offsets are those of the file, not of a compressed answer."""
    return {"Accept-Encoding": "identity", "Range": f"bytes={first}-{last}"}
