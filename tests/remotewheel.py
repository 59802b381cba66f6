"""A wheel's METADATA straight from an index: range requests for the zip's end and for one entry."""

from __future__ import annotations

import io
import zipfile
from email.message import Message
from email.parser import Parser

import requests

BLOCK = 1 << 20  # bytes; torch's zip directory takes about one


class RemoteFile(io.RawIOBase):
    """A seekable file behind HTTP, read in whole blocks, each once."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self.session, self.url, self.at = session, url, 0
        self.blocks: dict[int, bytes] = {}
        answer = session.get(url, headers={"Range": "bytes=0-0"})
        assert answer.status_code == 206, f"the index answers a range with {answer.status_code}"
        self.size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def read(self, count: int = -1) -> bytes:
        end = self.size if count < 0 else min(self.at + count, self.size)
        parts = []
        while self.at < end:
            number, offset = divmod(self.at, BLOCK)
            part = self._block(number)[offset : offset + end - self.at]
            parts.append(part)
            self.at += len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self.blocks:
            first, last = number * BLOCK, min((number + 1) * BLOCK, self.size) - 1
            answer = self.session.get(self.url, headers={"Range": f"bytes={first}-{last}"})
            assert answer.status_code == 206
            self.blocks[number] = answer.content
        return self.blocks[number]


def metadata(session: requests.Session, url: str) -> Message:
    """The METADATA of the wheel at *url*."""
    with zipfile.ZipFile(RemoteFile(session, url)) as wheel:  # type: ignore[arg-type]
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(wheel.read(name).decode())
