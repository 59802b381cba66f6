"""A wheel on an index → its METADATA, by range requests: of a gigabyte one or two megabytes are fetched.

Others wrote the wheel: what is read of it is bounded, and nothing of it is kept.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from email.parser import BytesHeaderParser
from typing import Any

import requests

from torchkiln.errors import BuildFailed, printable
from torchkiln.index.session import get, persist, refused
from torchkiln.index.settings import redact
from torchkiln.released import FileAt, WheelMetadata

_BLOCK = 1 << 20  # bytes; the directory of torch's wheel takes about one block
_MOST = 64  # blocks of one wheel
_METADATA = 1 << 20  # bytes unpacked; torch's has forty thousand
_NO_RANGES = "matrix add reads metadata by range requests; use an index that answers them"


def metadata_of(session: requests.Session, wheel: FileAt) -> WheelMetadata:
    """What METADATA of *wheel* tells.

    :raises BuildFailed: the index gives no lasting answer or no ranges, or it is no wheel.
    """
    try:
        with zipfile.ZipFile(io.BufferedReader(_Remote(session, wheel))) as archive:
            names = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
            inside = [one for one in names if one.count("/") == 1]
            if len(inside) != 1:
                raise _no_wheel(wheel, "it has no METADATA")
            with archive.open(inside[0]) as file:
                data = file.read(_METADATA + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise _no_wheel(wheel, str(error) or type(error).__name__) from error
    if len(data) > _METADATA:
        raise _no_wheel(wheel, f"METADATA has more than {_METADATA} bytes")
    told = BytesHeaderParser().parsebytes(data)
    return WheelMetadata(
        requires_python=_line(told.get("Requires-Python", "")),
        requires=tuple(_line(one) for one in told.get_all("Requires-Dist", [])),
        version=_line(told.get("Version", "")),
    )


def _line(value: object) -> str:
    """A field's value on one line, without what would steer a terminal: it is going to be printed."""
    return printable(" ".join(str(value).split()))


def _no_wheel(wheel: FileAt, why: str) -> BuildFailed:
    return BuildFailed(
        f"{wheel.filename}: not a wheel: {why[:200]}",
        hint="the file on the index is malformed; try another index",
    )


class _Remote(io.RawIOBase):
    """A seekable file behind HTTP, read in whole blocks, each once."""

    def __init__(self, session: requests.Session, wheel: FileAt) -> None:
        self._session, self._wheel, self._at = session, wheel, 0
        self._blocks: dict[int, bytes] = {}
        self._size = self._measured()

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
                raise BuildFailed(f"{redact(url)}: the server answers no ranges", hint=_NO_RANGES)
            if answer.status_code != 206:
                raise refused(url, answer.status_code)
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
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
