"""Project pages of an index → where a file lies, found by name and hash, as pip reads them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import requests
from pypi_simple import ACCEPT_JSON_PREFERRED

from torchkiln.errors import BuildFailed, Unresolvable
from torchkiln.index.own import place_of
from torchkiln.index.read_page import Page, found_on
from torchkiln.index.session import WORKERS, Session, get, persist, refused
from torchkiln.index.settings import PYTORCH_VARIABLE, IndexSettings, redact
from torchkiln.nouns import LockedWheel, Source
from torchkiln.released import FileAt
from torchkiln.store import Store

# A page without an ETag is taken as it was for this long (seconds): nine cells are locked in less.
_FRESH = 600.0
MOST = 16 << 20  # bytes of a page; the largest that is known has ten million


class Pages:
    """The project pages of the configured indexes; safe to use from several threads."""

    def __init__(
        self, settings: IndexSettings, store: Store, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.store = store
        self.session = Session(settings)
        self._clock = clock

    def files(self, name: str, index: Source, hashes: Collection[str]) -> tuple[FileAt, ...]:
        """The files of project *name* whose SHA-256 is in *hashes*, from a fresh page if need be.

        :raises Unresolvable: the project or its index is not there.
        :raises BuildFailed: the index gives no lasting answer.
        """
        found: tuple[FileAt, ...] = ()
        for fresh in (False, True):
            found = found_on(self.page(name, index, fresh=fresh), name, hashes)
            if {file.sha256 for file in found} >= set(hashes):
                break
        return found

    def find(self, filename: str, sha256: str, name: str, index: Source, *, fresh: bool = False) -> FileAt:
        """Where the file *filename* with *sha256* lies; the answer is kept, *fresh* asks again.

        :raises BuildFailed: the index no longer has that very file.
        :raises Unresolvable: no index has it, and nobody says where it lies.
        """
        if index is Source.OWN:
            return place_of(self.settings, name, filename, sha256)
        key = hashlib.sha256(f"{self.settings.url(index)}\n{filename}\n{sha256}".encode()).hexdigest()
        if not fresh and (known := self.store.record("urls", key)):
            return FileAt(filename=filename, url=str(known["url"]), size=known["size"], sha256=sha256)
        try:
            if fresh:
                self.page(name, index, fresh=True)
            files = self.files(name, index, {sha256})
        except Unresolvable as error:  # locked once, so it was there: not the cell is at fault
            raise BuildFailed(
                error.message, hint=error.hint or "the index lost it; use another one"
            ) from error
        for file in files:
            if file.filename == filename:
                self.store.put_record("urls", key, {"url": file.url, "size": file.size})
                return file
        raise BuildFailed(
            f"{filename}: the index has no file of that name with sha256 {sha256[:12]}…",
            hint="it was removed or replaced; run: torchkiln lock --upgrade",
        )

    def find_all(self, wheels: Iterable[LockedWheel]) -> dict[LockedWheel, FileAt]:
        """Where each of *wheels* lies; many look-ups at a time, the biggest wheels first."""
        ordered = sorted(wheels, key=lambda wheel: -wheel.size)
        with ThreadPoolExecutor(WORKERS) as pool:
            places = pool.map(
                lambda wheel: self.find(wheel.at or wheel.filename, wheel.sha256, wheel.name, wheel.index),
                ordered,
            )
            return dict(zip(ordered, places, strict=True))

    def measure(self, file: FileAt) -> FileAt:
        """*file* with its size in bytes: by HEAD, else by a range request.

        :raises BuildFailed: the server tells no size.
        """
        if file.size is not None:
            return file
        plain = {"Accept-Encoding": "identity"}
        with persist(self.session, "HEAD", file.url, headers=plain, allow_redirects=True) as head:
            length = head.headers.get("Content-Length", "")
            if head.status_code == 200 and length.isdigit() and not head.headers.get("Content-Encoding"):
                return replace(file, size=int(length))
        headers = {**plain, "Range": "bytes=0-0"}
        with persist(self.session, "GET", file.url, headers=headers, stream=True) as part:
            if part.status_code not in (200, 206):
                raise refused(file.url, part.status_code)
            total = (
                part.headers.get("Content-Range", "").rpartition("/")[2]
                if part.status_code == 206
                else part.headers.get("Content-Length", "")
            )
        if not total.isdigit():
            raise BuildFailed(
                f"{redact(file.url)}: the server tells no size", hint="a lock needs it; use another index"
            )
        return replace(file, size=int(total))

    def page(self, name: str, index: Source, *, fresh: bool) -> Page:
        """The page of *name*: a kept one by ETag, or for a short time where the server gives none.

        :raises Unresolvable: the project or its index is not there.
        :raises BuildFailed: the index gives no lasting answer.
        """
        url = f"{self.settings.url(index)}/{name}/"
        key = hashlib.sha256(url.encode()).hexdigest()
        kept = self.store.record("pages", key)
        headers = {"Accept": ACCEPT_JSON_PREFERRED}
        if kept and kept["etag"]:
            headers["If-None-Match"] = str(kept["etag"])
        elif kept and not fresh and 0 <= self._clock() - float(kept["at"]) < _FRESH:
            return _thaw(kept)
        try:
            response, body = get(self.session, url, MOST, headers=headers)
        except BuildFailed as error:
            if index is Source.PYTORCH:
                raise _unreachable(error.message) from error
            raise
        if response.status_code == 304 and kept:
            return _thaw(kept)
        if response.status_code == 404:
            raise Unresolvable(
                f"{redact(url)}: the index {index.value} has no project of this name",
                hint=f"is {PYTORCH_VARIABLE} a simple-index address?" if index is Source.PYTORCH else "",
            )
        if response.status_code != 200:
            raise refused(url, response.status_code)
        return self._keep(key, name, response, body)

    def _keep(self, key: str, name: str, response: requests.Response, body: bytes) -> Page:
        kept: dict[str, Any] = {
            "url": response.url,
            "json": "json" in response.headers.get("Content-Type", ""),
            "etag": response.headers.get("ETag", ""),
            "at": self._clock(),
            "body": body.decode("utf-8", "replace"),
        }
        found_on(_thaw(kept), name, ())  # what is no page must not be found again by the next run
        self.store.put_record("pages", key, kept)
        return _thaw(kept)


def _unreachable(reason: str) -> BuildFailed:
    return BuildFailed(
        f"PyTorch's index gives no answer: {reason}",
        hint=f"these wheels are nowhere else; look at {PYTORCH_VARIABLE}, the network and the proxy",
    )


def _thaw(kept: Mapping[str, Any]) -> Page:
    return Page(url=str(kept["url"]), json=bool(kept["json"]), body=str(kept["body"]).encode())
