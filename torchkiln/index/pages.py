"""Project pages of an index → where a file lies, found by name and hash, as pip reads them.

A file that no index has -> where the user says that it lies; it is known by its hash.

The place is an address, below which the file lies under its name, as on a project's release page or a mirror
of it, or a folder of this machine. The variable is named after the package: TORCHKILN_INDEX_FLASH_ATTN,
TORCHKILN_INDEX_MICROMAMBA.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import requests

from torchkiln.errors import BuildFailed, Unresolvable
from torchkiln.index.listing import Listing, Page, listing
from torchkiln.index.read_page import found_on, same_name
from torchkiln.index.remote_wheel import other_size
from torchkiln.index.session import LARGE, WORKERS, Session, get, persist, refused
from torchkiln.index.settings import PYTORCH_VARIABLE, IndexSettings, redact
from torchkiln.model.cell import Source
from torchkiln.model.index import FileAt, variable_of
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.http.failures import status_text

# A page without an ETag is taken as it was for this long (seconds): nine cells are locked in less.
_FRESH = 600.0
# As pypi_simple's ACCEPT_JSON_PREFERRED; that library takes half a second to import.
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.01"
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
        self._fetched: set[tuple[str, Source]] = set()
        self._large = threading.RLock()  # one large page at a time: in memory each is several times its size

    def files(self, name: str, index: Source, hashes: Collection[str]) -> tuple[FileAt, ...]:
        """The files of project *name* whose SHA-256 is in *hashes*, from a fresh page if need be.

        :raises Unresolvable: the project or its index is not there.
        :raises BuildFailed: the index gives no lasting answer.
        """
        found: tuple[FileAt, ...] = ()
        for fresh in (False, True):
            with self.page(name, index, fresh=fresh) as page:
                found = found_on(page, name, hashes)
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
                with self.page(name, index, fresh=True):
                    pass
            for file in self.files(name, index, {sha256}):
                if file.filename == filename:
                    self.store.put_record("urls", key, {"url": file.url, "size": file.size})
                    return file
            with self.page(name, index, fresh=True) as page:
                other = same_name(page, filename)
        except Unresolvable as error:  # locked once, so it was there: not the cell is at fault
            raise BuildFailed(
                error.message, hint=error.hint or "the index lost it; use another one"
            ) from error
        if other and other != sha256:
            raise BuildFailed(
                f"{filename}: the index serves another file than the lock names: sha256 {other} on the index,"
                f" {sha256} in the lock",
                hint="a published file never changes, so the index or the lock was tampered with: compare"
                " both with another index and with the project's own release before anything else",
            )
        raise BuildFailed(
            f"{filename}: the index no longer has this file (sha256 {sha256})",
            hint="use an index that still has it; the maintainers may have removed the release for a reason",
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
        """*file* with its size in bytes, as the server tells it: by HEAD, else by a range request.

        :raises BuildFailed: the server tells no size, or the page told another one.
        """
        size = self._size(file)
        if file.size is not None and file.size != size:
            raise other_size(file, size)
        return replace(file, size=size)

    def _size(self, file: FileAt) -> int:
        plain = {"Accept-Encoding": "identity"}
        with persist(self.session, "HEAD", file.url, headers=plain, allow_redirects=True) as head:
            length = head.headers.get("Content-Length", "")
            if head.status_code == 200 and _is_size(length) and not head.headers.get("Content-Encoding"):
                return int(length)
        headers = {**plain, "Range": "bytes=0-0"}
        with persist(self.session, "GET", file.url, headers=headers, stream=True) as part:
            if part.status_code not in (200, 206):
                raise refused(file.url, part.status_code)
            total = (
                part.headers.get("Content-Range", "").rpartition("/")[2]
                if part.status_code == 206
                else part.headers.get("Content-Length", "")
            )
        if not _is_size(total):
            raise BuildFailed(
                f"{redact(file.url)}: the server tells no size", hint="a lock needs it; use another index"
            )
        return int(total)

    def listing(self, name: str, index: Source, *, again: bool = False) -> Listing:
        """Every file that the page of *name* lists; the page is one that this object fetched.

        :param again: it is fetched once more.

        :raises Unresolvable: the project or its index is not there.
        :raises BuildFailed: the index gives no lasting answer, or something else than a page.
        """
        known = (name, index) in self._fetched
        with self.page(name, index, fresh=again or not known) as page:
            self._fetched.add((name, index))
            return listing(page)

    @contextmanager
    def page(self, name: str, index: Source, *, fresh: bool) -> Iterator[Page]:
        """The page of *name*: a kept one by ETag, or for a short time where the server gives none.

        A large one keeps others of its kind waiting until the context ends.

        :raises Unresolvable: the project or its index is not there.
        :raises BuildFailed: the index gives no lasting answer.
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
            kept = _sound(self.store.record("pages", key))
            headers = {"Accept": _ACCEPT}
            if kept and kept["etag"]:
                headers["If-None-Match"] = str(kept["etag"])
            elif kept and not fresh and 0 <= self._clock() - float(kept["at"]) < _FRESH:
                return _thaw(kept)
            del kept
        try:
            response, body = get(
                self.session,
                url,
                MOST,
                headers=headers,
                on_large=lambda: _enter(stack, self._large),
            )
        except BuildFailed as error:
            if index is Source.PYTORCH:
                raise _unreachable(error.message) from error
            raise
        if response.status_code == 304 and "If-None-Match" in headers:
            with self._large:
                if kept := _sound(self.store.record("pages", key)):
                    return _thaw(kept)
        if response.status_code == 404:
            raise Unresolvable(
                f"{redact(url)}: {status_text(404)}: the index {index.value} has no project of this name",
                hint=f"is {PYTORCH_VARIABLE} a simple-index address?"
                if index is Source.PYTORCH
                else "check the name, and the index address (pip's index-url, UV_DEFAULT_INDEX)",
            )
        if response.status_code != 200:
            raise refused(url, response.status_code)
        with self._large:
            return self._keep(key, name, response, body)

    def _keep(self, key: str, name: str, response: requests.Response, body: bytes) -> Page:
        page = Page(url=response.url, json=_is_json(response), body=body)
        found_on(page, name, ())  # what is not a page must not be found again by the next run
        kept: dict[str, Any] = {
            "url": page.url,
            "json": page.json,
            "etag": response.headers.get("ETag", ""),
            "at": self._clock(),
            "body": body.decode("utf-8", "replace"),
        }
        self.store.put_record("pages", key, kept)
        return page


def _enter(stack: ExitStack, lock: AbstractContextManager[object]) -> None:
    stack.enter_context(lock)


def _is_json(response: requests.Response) -> bool:
    """:raises BuildFailed: the answer is of a kind that no page of an index has."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("application/json", "application/vnd.pypi.simple.v1+json"):
        return True
    if kind in ("", "text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        return False
    raise BuildFailed(
        f"{redact(response.url)}: not a project page of a simple index: its Content-Type is {kind[:60]!r}",
        hint="check the index address",
    )


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def _unreachable(reason: str) -> BuildFailed:
    return BuildFailed(
        f"PyTorch's index gives no answer: {reason}",
        hint=f"these wheels are nowhere else; check {PYTORCH_VARIABLE}, the network and the proxy",
    )


def _sound(kept: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A kept page that is one."""
    kinds = {"url": str, "json": bool, "etag": str, "at": float, "body": str}
    return kept if kept and all(isinstance(kept.get(key), kind) for key, kind in kinds.items()) else None


def _thaw(kept: Mapping[str, Any]) -> Page:
    return Page(url=str(kept["url"]), json=bool(kept["json"]), body=str(kept["body"]).encode())


def place_of(settings: IndexSettings, name: str, filename: str, sha256: str) -> FileAt:
    """Where the file *filename* of package *name* lies.

    :raises Unresolvable: the user does not say.
    """
    place = dict(settings.places).get(variable_of(name))
    if place is None:
        raise Unresolvable(
            f"{filename} is on no index, and nobody says where it lies",
            hint=f"set {variable_of(name)} to the address below which it lies, or to a folder that has it",
        )
    return FileAt(filename=filename, url=f"{place}/{quote(filename)}", size=None, sha256=sha256)
