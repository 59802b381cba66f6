"""Reads and caches project pages of the indexes; finds files on these pages by name and hash."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urljoin

import requests

from torchkiln.errors import BuildFailed, NotListed, Unresolvable
from torchkiln.index.listing import ListedFile, Page, listing, not_a_page
from torchkiln.index.read_page import found_on, wheels_on
from torchkiln.index.remote_wheel import size_mismatch
from torchkiln.index.session import LARGE, WORKERS, IndexSession, byte_count, get, http_error, request
from torchkiln.index.settings import PYTORCH_VARIABLE, IndexSettings, redact
from torchkiln.model.cell import Source
from torchkiln.model.fields import INDEX_PATH
from torchkiln.model.index import FileAt
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.http.failures import status_text

# Seconds for which a page without an ETag is read from the cache; locking nine cells takes less.
_FRESH = 600.0
# The value of pypi_simple's ACCEPT_JSON_PREFERRED; an import of that library takes half a second.
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.01"
# Measured: two of five responses lack the dates of the newest files; ten in a row lack them once in 10,000.
_READS = 10
_PATH = re.compile(f"{INDEX_PATH}$")
MOST = 16 << 20  # bytes of a page; the largest known page has ten million


class Pages:
    """The project pages of the configured indexes; thread-safe."""

    def __init__(self, settings: IndexSettings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.session = IndexSession(settings)
        self._fetched: set[tuple[str, Source]] = set()
        self._large = threading.RLock()  # one large page at a time: in memory each is several times its size

    def files(self, name: str, index: Source, hashes: Collection[str]) -> tuple[FileAt, ...]:
        """The files of project *name* whose SHA-256 is in *hashes*, read again if the cached page lacks some.

        :raises Unresolvable: the index does not have the project, or is not configured.
        :raises BuildFailed: the page cannot be read.
        """
        found: tuple[FileAt, ...] = ()
        for fresh in (False, True):
            with self.page(name, index, fresh=fresh) as page:
                found = found_on(page, name, hashes)
            if {file.sha256 for file in found} >= set(hashes):
                break
        return found

    def find(self, wheel: LockedWheel, *, fresh: bool = False) -> FileAt:
        """The URL of *wheel*, cached unless *fresh*; by its recorded path if the index no longer lists it.

        :raises NotListed: the index no longer has this file.
        :raises BuildFailed: the index cannot be read, or lists the file with another hash.
        """
        try:
            return self.find_listed(wheel, fresh=fresh)
        except NotListed as error:
            if found := self.find_unlisted(wheel):
                return found
            tried = f", and does not serve {wheel.path}" if wheel.path else ""
            raise NotListed(f"{error.message}{tried}", hint=error.hint) from error

    def find_unlisted(self, wheel: LockedWheel) -> FileAt | None:
        """The URL of *wheel* by its recorded path, on the server of the index's files; None: not there.

        A wheel that was removed from its page is often still served.
        """
        if wheel.path is None:
            return None
        prefixes = [urljoin(self.settings.url(wheel.index), "/").rstrip("/")]
        with suppress(Unresolvable), self.page(wheel.name, wheel.index, fresh=False) as page:
            urls = [file.url.partition("#")[0].partition("?")[0] for file in wheels_on(page, wheel.name)]
            prefixes += [url.removesuffix(path) for url in urls if (path := path_of(url))]
        for url in (f"{prefix}{wheel.path}" for prefix in dict.fromkeys(prefixes)):
            headers = {"Accept-Encoding": "identity"}
            with request(self.session, "HEAD", url, headers=headers, allow_redirects=True) as head:
                if head.status_code == 200:
                    return FileAt(filename=wheel.filename, url=url, size=None, sha256=wheel.sha256)
        return None

    def find_listed(self, wheel: LockedWheel, *, fresh: bool = False) -> FileAt:
        """The URL of *wheel* by the page of its project, cached unless *fresh*.

        :raises NotListed: the index no longer has this file, or this project.
        :raises BuildFailed: the index cannot be read, or lists the file with another hash.
        """
        filename, sha256, name, index = wheel.filename, wheel.sha256, wheel.name, wheel.index
        key = hashlib.sha256(f"{self.settings.url(index)}\n{filename}\n{sha256}".encode()).hexdigest()
        if not fresh and (known := self.store.record("urls", key)):
            return FileAt(filename=filename, url=str(known["url"]), size=known["size"], sha256=sha256)
        try:
            for again in dict.fromkeys((fresh, True)):
                with self.page(name, index, fresh=again) as page:
                    for file in found_on(page, name, {sha256}):
                        if file.filename == filename:
                            self.store.put_record("urls", key, {"url": file.url, "size": file.size})
                            return file
                    files = listing(page)
            other = next((file.sha256 for file in files if file.filename == filename), "")
        except Unresolvable as error:  # the file was there when it was locked: the cell is not at fault
            raise NotListed(
                error.message, hint=error.hint or "the index no longer has the project; use another index"
            ) from error
        if other and other != sha256:
            raise BuildFailed(
                f"{filename}: checksum mismatch: sha256 {other} on the index, {sha256} in the lock",
                hint="a published file never changes, so the index or the lock was tampered with: compare"
                " both with another index and with the project's own release",
            )
        raise NotListed(
            f"{filename}: the index no longer has this file (sha256 {sha256})",
            hint="use a vault (--vault), or an index that still has it; the maintainers may have removed the"
            " release for a reason",
        )

    def find_all(self, wheels: Iterable[LockedWheel]) -> dict[LockedWheel, FileAt]:
        """The location of each wheel, found in parallel, the largest wheels first."""
        ordered = sorted(wheels, key=lambda wheel: -wheel.size)
        with ThreadPoolExecutor(WORKERS) as pool:
            return dict(zip(ordered, pool.map(self.find, ordered), strict=True))

    def measure(self, file: FileAt) -> FileAt:
        """*file* with its size in bytes on the server, by a GET, as the download checks it.

        The answer to a HEAD may have another size: it is not used.

        :raises BuildFailed: the server does not send the size, or the page has another one.
        """
        size = self._size(file)
        if file.size is not None and file.size != size:
            raise size_mismatch(file, size)
        return replace(file, size=size)

    def _size(self, file: FileAt) -> int:
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
        with request(self.session, "GET", file.url, headers=headers, stream=True) as part:
            if part.status_code not in (200, 206, 416):  # 416: the file is empty
                raise http_error(file.url, part.status_code)
            name = "Content-Length" if part.status_code == 200 else "Content-Range"
            size = byte_count(part.headers.get(name, "").rpartition("/")[2])
        if size is None:
            raise BuildFailed(
                f"{redact(file.url)}: the server does not send the file size",
                hint="a lock needs the size; use another index",
            )
        return size

    def uploaded_before(self, as_of: str, name: str, index: Source) -> tuple[tuple[ListedFile, ...], int]:
        """The files of project *name* from before the day *as_of* (UTC), and the number of the others.

        The page is read again as long as some of its wheels have a date and others do not. A file without a
        date is included, because some indexes have no dates; a lock from such an index keeps its versions.

        :raises Unresolvable: the index does not have the project, or is not configured.
        :raises BuildFailed: the page cannot be read, or is not a project page.
        """
        limit = datetime.fromisoformat(as_of).replace(tzinfo=timezone.utc)
        dates: dict[str, datetime | None] = {}
        fresh = (name, index) not in self._fetched
        for _ in range(_READS):
            with self.page(name, index, fresh=fresh) as page:
                files = listing(page)
            self._fetched.add((name, index))
            for file in files:
                dates[file.filename] = dates.get(file.filename) or parse_time(file.uploaded)
            dated = [bool(date) for filename, date in dates.items() if filename.endswith(".whl")]
            if all(dated) or not any(dated):
                break
            fresh = True
        old = tuple(file for file in files if not (date := dates[file.filename]) or date < limit)
        return old, len(files) - len(old)

    @contextmanager
    def page(self, name: str, index: Source, *, fresh: bool) -> Iterator[Page]:
        """The page of *name*: cached by ETag, or for a short time if the server does not send one.

        Only one large page is open at a time.

        :raises Unresolvable: the index does not have the project, or is not configured.
        :raises BuildFailed: the page cannot be read.
        """
        with ExitStack() as stack:
            page = self._page(name, index, stack, fresh=fresh)
            if len(page.body) > LARGE:
                stack.enter_context(self._large)
            yield page

    def _page(self, name: str, index: Source, stack: ExitStack, *, fresh: bool) -> Page:
        url = f"{self.settings.url(index)}/{name}/"
        key = hashlib.sha256(url.encode()).hexdigest()
        with self._large:
            cached = _valid(self.store.record("pages", key))
            headers = {"Accept": _ACCEPT}
            if cached and cached["etag"]:
                headers["If-None-Match"] = str(cached["etag"])
            elif cached and not fresh and 0 <= time.time() - float(cached["at"]) < _FRESH:
                return _page_of(cached)
            del cached
        try:
            response, body = get(
                self.session, url, MOST, headers=headers, on_large=lambda: stack.enter_context(self._large)
            )
        except BuildFailed as error:
            if index is Source.PYTORCH:
                raise BuildFailed(
                    f"PyTorch's index: {error.message}",
                    hint=f"no other index has these wheels: check {PYTORCH_VARIABLE}, the network, the proxy",
                ) from error
            raise
        if response.status_code == 304 and "If-None-Match" in headers:
            with self._large:
                if cached := _valid(self.store.record("pages", key)):
                    return _page_of(cached)
        if response.status_code == 404:
            raise Unresolvable(
                f"{redact(url)}: {status_text(404)}: no such project on the index {index.value}",
                hint=f"check that {PYTORCH_VARIABLE} is the URL of a simple index"
                if index is Source.PYTORCH
                else "check the name, and the index URL (pip's index-url, UV_DEFAULT_INDEX)",
            )
        if response.status_code != 200:
            raise http_error(url, response.status_code)
        with self._large:
            return self._cache(key, name, response, body)

    def _cache(self, key: str, name: str, response: requests.Response, body: bytes) -> Page:
        page = Page(url=response.url, json=_is_json(response), body=body)
        found_on(page, name, ())  # do not cache an invalid page
        record: dict[str, Any] = {
            "url": page.url,
            "json": page.json,
            "etag": response.headers.get("ETag", ""),
            "at": time.time(),
            "body": body.decode("utf-8", "replace"),
        }
        self.store.put_record("pages", key, record)
        return page


def parse_time(text: str) -> datetime | None:
    """*text* in ISO 8601 as a time; without a time zone it is UTC; None if it is invalid."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def path_of(url: str) -> str | None:
    """The part of *url* that all mirrors of an index have in common; None: it has no such part."""
    found = _PATH.search(url.partition("#")[0].partition("?")[0])
    return found[0] if found else None


def _is_json(response: requests.Response) -> bool:
    """Whether the page is JSON.

    :raises BuildFailed: its Content-Type is not that of a project page.
    """
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("application/json", "application/vnd.pypi.simple.v1+json"):
        return True
    if kind in ("", "text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        return False
    raise not_a_page(response.url, f"its Content-Type is {kind[:60]!r}")


def _valid(record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    kinds = {"url": str, "json": bool, "etag": str, "at": float, "body": str}
    return (
        record if record and all(isinstance(record.get(key), kind) for key, kind in kinds.items()) else None
    )


def _page_of(record: Mapping[str, Any]) -> Page:
    return Page(url=str(record["url"]), json=bool(record["json"]), body=str(record["body"]).encode())
