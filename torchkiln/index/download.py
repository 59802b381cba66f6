"""Downloads locked files, with retries and resume; the caller verifies the hash."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

import requests
from urllib3.exceptions import HTTPError

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index.pages import Pages
from torchkiln.index.session import IndexSession, http_error, send, unavailable
from torchkiln.index.settings import index_settings, redact, with_address
from torchkiln.index.verified import F, LockedFile, fetch_verified
from torchkiln.model.cell import PythonArchive
from torchkiln.model.index import FileAt
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Transfer
from torchkiln.store.store import Store
from torchkiln.util.files import PassingFile
from torchkiln.util.http.failures import reason_of
from torchkiln.util.http.retry import GivenUp, Progress, Transient, retry
from torchkiln.util.http.session import LEAST

STALLED = 30.0  # seconds without progress after which another connection is tried
GIVEN_UP = 60.0  # seconds without progress after which no further attempt begins
# From this size on the first request has a Range too: a mirror that fetches the file itself may stream a
# range, and hold a plain response back until it is complete (measured: 13 s for torch's wheel).
_LARGE = 16 << 20
_POLL = 0.2  # seconds between two checks for cancellation
_RANGE = re.compile(r"bytes (?P<start>\d+)-\d+/(?P<total>\d+|\*)")
T = TypeVar("T")


class Downloader(ABC, Generic[F]):
    """Downloads files; thread-safe. A subclass locates them."""

    def __init__(self, session: IndexSession, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._session = session
        self._sleep = sleep

    @abstractmethod
    def _locate(self, file: F, *, fresh: bool) -> FileAt:
        """The URL of the file; with *fresh*, it is not read from the cache."""

    def tail(self, file: F, count: int) -> bytes | None:
        """The last *count* bytes of the file; None if the server does not support range requests.

        :raises BuildFailed: the download failed.
        :raises BadWheel: the size differs from the lock.
        """
        count = min(count, file.size)
        return self._retry(file, lambda location: self._tail(location, file, count))

    def fetch(self, file: F, path: Path, transfer: Transfer, /) -> None:
        """Download the file to *path*, or resume the download there; the hash is not verified.

        The file only grows, so that another process can read it meanwhile: if the server ignores the range,
        the bytes that are there already are skipped.

        :param transfer: it first gets the number of bytes that were there already; if it is cancelled, the
            partial file is kept.
        :raises BuildFailed: the download failed, or the file cannot be written.
        :raises BadWheel: the size differs from the lock.
        """
        try:
            out = PassingFile(path, "ab")
        except OSError as error:
            raise _unwritable(path, error) from error
        with out:
            have = out.seek(0, os.SEEK_END)
            if have > file.size:
                have = out.truncate(0)
            if have:
                transfer.advanced(have)
            stream = _Stream(file, path, out, have, transfer)
            try:
                if not stream.done():
                    self._retry(file, lambda location: self._receive(location, stream), stream)
                stream.check()
            finally:
                if not stream.have:  # an empty file helps no later run
                    path.unlink(missing_ok=True)

    def _receive(self, location: FileAt, stream: _Stream) -> None:
        have, file = stream.have, stream.file
        ranged = bool(have) or file.size >= _LARGE
        byte_range = f"bytes={have}-" if ranged else ""
        with self._opened(location.url, file, have, byte_range) as (response, received):
            skip = have if response.status_code == 200 else 0
            with _shutdown_on_cancel(response, stream):
                while not stream.done() and (chunk := response.raw.read(LEAST)):
                    stream.take(chunk[skip:])
                    skip = max(skip - len(chunk), 0)
                    received(len(chunk))
        if not stream.done():
            raise Transient(f"connection closed after {stream.have} of {file.size} bytes")

    def _tail(self, location: FileAt, file: F, count: int) -> bytes | None:
        start = file.size - count
        byte_range = f"bytes={start}-{file.size - 1}"
        with self._opened(location.url, file, start, byte_range) as (response, _):
            if response.status_code == 200:
                return None
            data: bytes = response.raw.read(count)
        if len(data) != count:
            raise Transient("connection closed")
        return data

    @contextlib.contextmanager
    def _opened(
        self, url: str, file: LockedFile, start: int, byte_range: str
    ) -> Iterator[tuple[requests.Response, Callable[[int], None]]]:
        """The response to a GET: 200 with the size of *file*, or 206 from *start* if a range is requested.

        Its second part gets the number of bytes that the block receives: without progress the block ends.
        """
        # identity: a compressed response would have neither the locked size nor the locked hash.
        headers = {"Accept-Encoding": "identity", **({"Range": byte_range} if byte_range else {})}
        try:
            with (
                self._session.deadlines.limit(STALLED, renewed=True) as received,
                send(self._session, "GET", url, headers=headers, stream=True) as response,
            ):
                if response.status_code == 200:
                    _check_size(file, response.headers.get("Content-Length", ""))
                elif response.status_code == 206 and byte_range:
                    _check_range(file, response, start)
                else:
                    raise _HttpError(url, response.status_code)
                yield response, received
        except (HTTPError, OSError) as error:
            raise Transient(reason_of(error)) from error

    def _retry(self, file: F, step: Callable[[FileAt], T], stream: _Stream | None = None) -> T | None:
        """Call *step* with the file's location, with retries; None if the stream was cancelled."""
        location, refreshed = self._locate(file, fresh=False), False

        def done() -> bool:
            return stream is not None and stream.done()

        def attempt() -> T | None:
            nonlocal location, refreshed
            while not done():
                try:
                    return step(location)
                except _HttpError as error:
                    # The URL may come from the cache, or have expired: the page has the current one.
                    if refreshed:
                        raise http_error(error.url, error.status) from error
                    refreshed, location = True, self._locate(file, fresh=True)
            return None

        def sleep(seconds: float) -> None:
            while seconds > 0 and not done():
                self._sleep(min(seconds, _POLL))
                seconds -= _POLL

        progress = Progress(lambda: stream.have if stream else 0, LEAST)
        try:
            return retry(attempt, sleep=sleep, max_seconds=GIVEN_UP, progress=progress)
        except GivenUp as error:
            raise unavailable(location.url, error) from error


class DirectDownloads(Downloader[F]):
    """Downloads files whose URLs are known: *url_of* returns them."""

    def __init__(self, session: IndexSession, url_of: Callable[[F], str]) -> None:
        super().__init__(session)
        self._url_of = url_of

    def _locate(self, file: F, *, fresh: bool) -> FileAt:
        return FileAt(filename=file.filename, url=self._url_of(file), size=file.size, sha256=file.sha256)


class Downloads(Downloader[LockedWheel]):
    """Downloads wheels from the configured indexes."""

    def __init__(self, pages: Pages, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(pages.session, sleep=sleep)
        self.pages = pages

    def size(self, wheel: LockedWheel) -> int:
        """The size of the file on the index, in bytes.

        :raises BuildFailed: the index does not have it.
        """
        return self.pages.measure(self._locate(wheel, fresh=False)).size or 0

    def fetch_wheel(self, wheel: LockedWheel, store: Store) -> Path:
        """The wheel in *store*, downloaded and verified if it is not there.

        :raises BadWheel: size or SHA-256 differ from the lock; the download is deleted.
        """
        path = store.wheel(wheel)
        with store.lock(f"wheel-{wheel.sha256}", f"downloads {wheel.filename}"):
            if store.has_wheel(wheel):
                return path
            path.parent.mkdir(parents=True, exist_ok=True)
            part = store.part(wheel)
            fetch_verified(self.fetch, wheel, part, Transfer())
            return store.adopt(part, path)

    def _locate(self, file: LockedWheel, *, fresh: bool) -> FileAt:
        return self.pages.find(file, fresh=fresh)


def open_downloads(environ: Mapping[str, str], store: Store) -> Downloads:
    """Downloads from the indexes in the user's settings."""
    return Downloads(Pages(index_settings(environ), store))


class _HttpError(Exception):
    """A status that a retry with the same URL does not change."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(status)
        self.url, self.status = url, status


@dataclass(slots=True)
class _Stream:
    """A partial file that grows."""

    file: LockedFile
    path: Path
    out: FileIO
    have: int
    transfer: Transfer

    def done(self) -> bool:
        return self.have == self.file.size or self.transfer.cancelled()

    def check(self) -> None:
        """Check that the file holds all bytes written; otherwise a process that reads it would wait forever.

        :raises BuildFailed: another process truncated or deleted it.
        """
        stat = os.fstat(self.out.fileno())
        if stat.st_size < self.have or not stat.st_nlink:
            raise BuildFailed(
                f"{self.path.name} was truncated or deleted during the download",
                hint="check whether another program changes the cache, and run again",
            )

    def take(self, chunk: bytes) -> None:
        """Append *chunk*.

        :raises BadWheel: the file would be longer than in the lock.
        :raises BuildFailed: the file cannot be written.
        """
        if self.have + len(chunk) > self.file.size:
            raise BadWheel(
                self.file.filename, f"size mismatch: the server sends more than {self.file.size} bytes"
            )
        rest = memoryview(chunk)
        while rest:
            try:
                written = self.out.write(rest) or 0
            except OSError as error:
                raise _unwritable(self.path, error) from error
            rest = rest[written:]
            self.have += written
            self.transfer.advanced(written)


@contextlib.contextmanager
def _shutdown_on_cancel(response: requests.Response, stream: _Stream) -> Iterator[None]:
    """Shut the connection down on cancellation, so that a read from a silent server ends at once."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL):
            if stream.done():
                with contextlib.suppress(ValueError, OSError, RuntimeError):  # the response has ended
                    response.raw.shutdown()
                return

    watcher = threading.Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _check_size(file: LockedFile, length: str) -> None:
    if length.isdigit() and int(length) != file.size:
        raise BadWheel(
            file.filename, f"size mismatch: {length} bytes on the server, the lock has {file.size}"
        )


def _check_range(file: LockedFile, response: requests.Response, start: int) -> None:
    header = response.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(header)
    if not found or int(found["start"]) != start:
        raise Transient(f"requested bytes from {start}, got {header or 'no Content-Range'}")
    _check_size(file, found["total"])


def _unwritable(path: Path, error: OSError) -> BuildFailed:
    return BuildFailed(
        f"{path.name} cannot be written: {(error.strerror or str(error)).lower()}",
        hint="free disk space, or set TORCHKILN_CACHE to another folder; the partial download is kept",
    )


_MOST = 1 << 30  # bytes; real archives have 20 to 120 million


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sized:
    """An archive, and its size on the server, because the matrix does not state the size."""

    filename: str
    sha256: str
    size: int


def download(
    archive: PythonArchive,
    url: str,
    path: Path,
    store: Store,
    *,
    environ: Mapping[str, str],
    began: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> None:
    """Download *archive* from *url* to *path*; the caller verifies its hash.

    :param began: called with the number of bytes.
    :raises BuildFailed: the server cannot be reached, does not have the file, or has a much too large one.
    """
    settings, address = with_address(index_settings(environ), url, "archive")
    pages = Pages(settings, store)
    at = FileAt(filename=archive.filename, url=address, size=None, sha256=archive.sha256)
    size = pages.measure(at).size or 0
    file = _Sized(filename=archive.filename, sha256=archive.sha256, size=size)
    if size > _MOST:
        raise BuildFailed(
            f"{redact(address)}: too large for an archive of a Python: {size} bytes, limit {_MOST >> 20} MiB",
            hint="correct the URL in matrix.yaml, under pythons",
        )
    began(size)
    source: DirectDownloads[_Sized] = DirectDownloads(pages.session, lambda _: address)
    source.fetch(file, path, Transfer(on_progress))
