"""LockedWheel, or another file by hash → its file, in order and resumable; hashed by whoever reads it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

import requests
from urllib3.exceptions import HTTPError

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index.pages import Pages
from torchkiln.index.session import Session, ask, lost, refused
from torchkiln.index.settings import index_settings
from torchkiln.index.verified import F, LockedFile, fetch_verified
from torchkiln.model.index import FileAt
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.http.retry import GivenUp, Progress, Transient, retry
from torchkiln.util.page_cache import PassingFile

_CHUNK = 1 << 20  # one read of the socket; larger ones only cost memory
# From this size on a range is asked for even at the start: a mirror that has to fetch the file itself may
# pass a range on as it comes, and hold a plain answer back until it has all (seen: 13 s for torch's wheel).
_LARGE = 16 << 20
_LOOK = 0.2  # seconds between two looks whether the work was called off
_RANGE = re.compile(r"bytes (?P<start>\d+)-\d+/(?P<total>\d+|\*)")
T = TypeVar("T")


class Fetching(Generic[F]):
    """Fetches files; safe to use from several threads. Where they lie is for who derives from it."""

    def __init__(self, session: Session, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._session = session
        self._sleep = sleep

    def _place(self, wheel: F, *, fresh: bool) -> FileAt:
        """Where the file lies; *fresh*: what was kept of that did not help."""
        raise NotImplementedError

    def tail(self, wheel: F, count: int) -> bytes | None:
        """The last *count* bytes of the file; None where the server has no ranges.

        :raises BuildFailed: the file is not to be had, or has another size than was locked.
        """
        count = min(count, wheel.size)
        return self._persist(wheel, lambda place: self._tail(place, wheel, count))

    def fetch(
        self,
        wheel: F,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """Bring the file to *path*, in order, going on from what is there; not verified.

        The file only ever grows, so that another process can read behind: a server that cannot go on
        from the middle sends the beginning again, which is passed over.

        :param on_progress: gets the bytes that came to be there, first those that were there already.
        :param cancelled: once it is true, `fetch` returns early and leaves what it has; no file if that is
            nothing.
        :raises BuildFailed: the file is not to be had, has another size, or cannot be written here.
        """
        try:
            out = PassingFile(path, "ab")
        except OSError as error:
            raise _unwritable(path, error) from error
        with out:
            have = out.seek(0, os.SEEK_END)
            if have > wheel.size:
                have = out.truncate(0)
            if have:
                on_progress(have)
            stream = _Stream(wheel, path, out, have, on_progress, cancelled)
            try:
                if not stream.over():
                    self._persist(wheel, lambda place: self._pour(place, stream), stream)
                stream.check()
            finally:
                if not stream.have:  # nothing to go on from
                    path.unlink(missing_ok=True)

    def _pour(self, place: FileAt, stream: _Stream) -> None:
        """One answer of the server into *stream*, as far as it goes."""
        have, wheel = stream.have, stream.wheel
        ranged = have or wheel.size >= _LARGE
        with self._ask(place.url, {"Range": f"bytes={have}-"} if ranged else {}) as answer:
            if answer.status_code == 200:
                _expect_size(wheel, answer.headers.get("Content-Length", ""))
                skip = have
            elif answer.status_code == 206 and ranged:
                _expect_range(wheel, answer, have)
                skip = 0
            else:
                raise _Refused(place.url, answer.status_code)
            try:
                with _called_off(answer, stream):
                    while not stream.over() and (chunk := answer.raw.read(_CHUNK)):
                        stream.take(chunk[skip:])
                        skip = max(skip - len(chunk), 0)
            except (HTTPError, OSError) as error:
                raise Transient(f"the connection broke off ({type(error).__name__})") from error
        if not stream.over():
            raise Transient(f"the connection broke off after {stream.have} of {wheel.size} bytes")

    def _tail(self, place: FileAt, wheel: F, count: int) -> bytes | None:
        start = wheel.size - count
        with self._ask(place.url, {"Range": f"bytes={start}-{wheel.size - 1}"}) as answer:
            if answer.status_code == 200:
                _expect_size(wheel, answer.headers.get("Content-Length", ""))
                return None
            if answer.status_code != 206:
                raise _Refused(place.url, answer.status_code)
            _expect_range(wheel, answer, start)
            try:
                data: bytes = answer.raw.read(count)
            except (HTTPError, OSError) as error:
                raise Transient(f"the connection broke off ({type(error).__name__})") from error
        if len(data) != count:
            raise Transient("the connection broke off")
        return data

    def _ask(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        # Identity: a compressed answer would have neither the locked size nor the locked hash.
        plain = {"Accept-Encoding": "identity", **headers}
        return ask(self._session, "GET", url, headers=plain, stream=True)

    def _persist(self, wheel: F, step: Callable[[FileAt], T], stream: _Stream | None = None) -> T | None:
        """*step* with the file's address, again while that may help; None once the stream is cancelled."""
        place, looked_again = self._place(wheel, fresh=False), False

        def over() -> bool:
            return stream is not None and stream.over()

        def attempt() -> T | None:
            nonlocal place, looked_again
            while not over():
                try:
                    return step(place)
                except _Refused as error:
                    # An address that was kept, or that expires: the page has the present one.
                    if looked_again:
                        raise refused(error.url, error.status) from error
                    looked_again, place = True, self._place(wheel, fresh=True)
            return None

        def rest(seconds: float) -> None:
            while seconds > 0 and not over():
                self._sleep(min(seconds, _LOOK))
                seconds -= _LOOK

        progress = Progress(lambda: stream.have if stream else 0)
        try:
            return retry(attempt, sleep=rest, progress=progress)
        except GivenUp as error:
            raise lost(place.url, str(error)) from error


class Downloads(Fetching[LockedWheel]):
    """Fetches wheels from the configured indexes."""

    def __init__(self, pages: Pages, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(pages.session, sleep=sleep)
        self.pages = pages

    def size(self, wheel: LockedWheel) -> int:
        """Bytes of the file where it lies.

        :raises BuildFailed: it is not to be had.
        """
        return self.pages.measure(self._place(wheel, fresh=False)).size or 0

    def fetch_wheel(
        self,
        wheel: LockedWheel,
        store: Store,
        *,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Path:
        """The wheel in *store*, fetched and verified if it is not there yet.

        :raises BadWheel: what the index serves is not what was locked; nothing is kept of it.
        """
        place = store.wheel(wheel)
        with store.lock(f"wheel-{wheel.sha256}", f"fetches {wheel.filename}"):
            if store.has_wheel(wheel):
                return place
            place.parent.mkdir(parents=True, exist_ok=True)
            part = store.part(wheel)
            fetch_verified(self.fetch, wheel, part, on_progress=on_progress)
            return store.adopt(part, place)

    def _place(self, wheel: LockedWheel, *, fresh: bool) -> FileAt:
        at = wheel.at or wheel.filename
        return self.pages.find(at, wheel.sha256, wheel.name, wheel.index, fresh=fresh)


def open_downloads(environ: Mapping[str, str], store: Store) -> Downloads:
    """Downloads from the indexes that the user's settings name."""
    return Downloads(Pages(index_settings(environ), store))


class _Refused(Exception):
    """An answer that trying the same address again cannot change."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(status)
        self.url, self.status = url, status


class _Stream:
    """The file as it grows."""

    def __init__(
        self,
        wheel: LockedFile,
        path: Path,
        out: FileIO,
        have: int,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.wheel, self.have = wheel, have
        self._path, self._out, self._on_progress, self._cancelled = path, out, on_progress, cancelled

    def over(self) -> bool:
        """Whether nothing more is to come: complete, or cancelled."""
        return self.have == self.wheel.size or self.called_off()

    def called_off(self) -> bool:
        """Whether the work was cancelled."""
        return self._cancelled()

    def check(self) -> None:
        """Whether the file holds all that was written: who reads behind would wait for the rest for ever.

        :raises BuildFailed: somebody cut or deleted it meanwhile.
        """
        found = os.fstat(self._out.fileno())
        if found.st_size < self.have or not found.st_nlink:
            raise BuildFailed(
                f"{self._path.name} was cut or deleted while it was fetched",
                hint="is something else at work in the cache? run again",
            )

    def take(self, chunk: bytes) -> None:
        """Append *chunk*.

        :raises BadWheel: the server sends more than was locked.
        :raises BuildFailed: the disk does not take it.
        """
        if self.have + len(chunk) > self.wheel.size:
            raise BadWheel(self.wheel.filename, f"the server sends more than {self.wheel.size} bytes")
        rest = memoryview(chunk)
        while rest:
            try:
                written = self._out.write(rest) or 0
            except OSError as error:
                raise _unwritable(self._path, error) from error
            rest = rest[written:]
            self.have += written
            self._on_progress(written)


@contextlib.contextmanager
def _called_off(answer: requests.Response, stream: _Stream) -> Iterator[None]:
    """Inside, a read that waits for a silent server ends when the work is called off, not a minute later."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK):
            if stream.over():
                with contextlib.suppress(ValueError, OSError, RuntimeError):  # it has ended by itself
                    answer.raw.shutdown()
                return

    watcher = threading.Thread(target=watch, name="watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _expect_size(wheel: LockedFile, length: str) -> None:
    if length.isdigit() and int(length) != wheel.size:
        raise BadWheel(wheel.filename, f"the server's file has {length} bytes, locked are {wheel.size}")


def _expect_range(wheel: LockedFile, answer: requests.Response, start: int) -> None:
    told = answer.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(told)
    if not found or int(found["start"]) != start:
        raise Transient(f"asked from byte {start}, got {told or 'no Content-Range'}")
    _expect_size(wheel, found["total"])


def _unwritable(path: Path, error: OSError) -> BuildFailed:
    what = "no space is left" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return BuildFailed(
        f"{path.name} cannot be written: {what}",
        hint="make room, or set TORCHKILN_CACHE to another folder; what was fetched is kept",
    )
