"""A local index server for uv that relays the configured indexes with limits.

uv does not limit what it reads, refuses files without an upload date if it gets a date, and cannot wait for
METADATA of a wheel that is built when it is needed. So uv gets only the URL of this server, which downloads
and parses each page, and serves the few fields that a resolver needs. Of a wheel, the server offers only
METADATA. It keeps errors of the indexes for the caller.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed, KilnError, Unresolvable
from torchkiln.index.listing import ListedFile
from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages
from torchkiln.index.read_page import excludes_index, located, merged, of_project, release_files
from torchkiln.index.session import TOTAL
from torchkiln.model.cell import Source
from torchkiln.model.index import LocalWheel

PROJECTS = 1_000  # pages that a resolver may request; a cell has 130 packages, one with vllm 230
_MOST = {
    "files": 300_000,  # on all pages together; a cell has 64,000, one with vllm 164,000
    "wheels": 3_000,  # whose METADATA uv may request
    "bytes of METADATA": 64 << 20,
}
_JSON = "application/vnd.pypi.simple.v1+json"
_TEXT = 200  # characters of a field in a page for uv
_SOURCES: Collection[str] = (Source.DEFAULT.value, Source.PYTORCH.value)


class Relay:
    """The server, while its context lasts; thread-safe, because uv sends requests in parallel.

    :param local: wheels that no index has.
    """

    def __init__(self, pages: Pages, *, as_of: str, local: Collection[LocalWheel] = ()) -> None:
        self.failures: list[Exception] = []  # in the order in which they happened
        self.missing: dict[str, Unresolvable] = {}  # projects of which uv sees no files: why
        self.left_out: dict[str, tuple[str, ...]] = {}  # project → files that uv does not see, with reasons
        self.builds = 0  # METADATA of local wheels for which uv waits now
        self._pages, self._as_of, self._local = pages, as_of, local
        self._own_metadata = {wheel.sha256: wheel.metadata for wheel in local}
        self._metadata = Metadata(pages)
        self._files: dict[str, tuple[ListedFile, Source]] = {}  # by sha256
        self._projects: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()  # by key of `_MOST`
        self._guard = threading.Lock()
        self._token = secrets.token_hex(16)  # other users of this machine must not use the user's credentials
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, index: Source) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._token}/{index.value}"

    def answer(self, path: str) -> bytes | None:
        """The body of the response for *path*; None: not found.

        :raises KilnError: an index is at fault; the error is also in `failures`.
        """
        try:
            match [unquote(part) for part in path.strip("/").split("/")]:
                case [token, source, project] if token == self._token and source in _SOURCES:
                    return self._page(project, Source(source))
                case [token, "files", sha256, name] if token == self._token and name.endswith(".metadata"):
                    return self._beside(sha256)
        except Exception as error:  # any error must end the run, not just this thread
            self.failures.append(error)
            raise
        return None

    def _page(self, project: str, index: Source) -> bytes | None:
        name = canonicalize_name(project)
        with self._guard:
            self._projects.add((name, index.value))
            if len(self._projects) > PROJECTS:
                raise _limit_exceeded(name, PROJECTS, "projects")
        local = of_project(self._local, name)
        old, new = ((), 0) if excludes_index(local) else self._listed(name, index)
        safe, left_out = release_files(old, name)
        files = merged(safe, local)
        self.left_out[name] = tuple(f"{file}: {why}" for file, why in left_out.items())
        if not files:
            self.missing.setdefault(name, self._nothing(name, listed=len(old), new=new))
            return None
        self._count(name, "files", len(files))
        with self._guard:
            self._files |= {file.sha256: (file, index) for file in files}
        entries = [_entry(file, f"/{self._token}/files") for file in files]
        document = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": entries}
        return json.dumps(document, separators=(",", ":")).encode()

    def _listed(self, name: str, index: Source) -> tuple[tuple[ListedFile, ...], int]:
        """The files on the page of *name* that are old enough, and the number of the others."""
        try:
            with self._pages.session.deadlines.within(TOTAL):
                return self._pages.uploaded_before(self._as_of, name, index)
        except Unresolvable as error:
            self.missing[name] = error
            return (), 0

    def _nothing(self, name: str, *, listed: int, new: int) -> Unresolvable:
        """The error if a resolver could use none of the *listed* files, and *new* others are too new."""
        why, left_out = "its page on the index lists no files", self.left_out[name]
        if left_out:
            why = "\n  ".join(("the index lists no valid file of it:", *left_out[:5]))
        elif listed:
            why = "the index lists neither wheels nor sdists of it"
        elif new:
            why = f"all of its files ({new}) were uploaded on {self._as_of} or later"
        return Unresolvable(f"{name}: {why}", hint="use an index that has it, or lock with a later date")

    def _beside(self, sha256: str) -> bytes | None:
        if sha256 not in self._files:
            return None
        if sha256 in self._own_metadata:
            with self._guard:
                self.builds += 1
            try:
                return self._own_metadata[sha256]()
            finally:
                with self._guard:
                    self.builds -= 1
        file, index = self._files[sha256]
        self._count(file.filename, "wheels", 1)
        data = self._metadata.of(located(file), index)
        self._count(file.filename, "bytes of METADATA", len(data))
        return data

    def _count(self, name: str, kind: str, number: int) -> None:
        with self._guard:
            self._counts[kind] += number
            if self._counts[kind] > _MOST[kind]:
                raise _limit_exceeded(name, _MOST[kind], kind)


def _entry(file: ListedFile, folder: str) -> dict[str, Any]:
    """*file* for uv, without its upload time, which `Pages.uploaded_before` has checked."""
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": f"{folder}/{file.sha256}/{quote(file.filename)}",
        "hashes": {"sha256": file.sha256},
    }
    if file.filename.endswith(".whl"):
        entry["core-metadata"] = True
    if file.requires_python:
        entry["requires-python"] = file.requires_python[:_TEXT]
    if file.yanked is not None:
        entry["yanked"] = file.yanked[:_TEXT] or True
    return entry


def _limit_exceeded(name: str, limit: int, kind: str) -> BuildFailed:
    return BuildFailed(
        f"{name}: the requirements lead to more than {limit} {kind}",
        hint="the index is at fault, or a requirement in matrix.yaml is too wide: add a bound",
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: uv closes its connections when it has finished."""


def _handler(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Write no access log."""

        def do_GET(self) -> None:
            try:
                body = relay.answer(self.path)
                status = 200 if body is not None else 404
            except KilnError:
                body, status = None, 500
            self.send_response(status)
            kind = "application/octet-stream" if self.path.endswith(".metadata") else _JSON
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    return Handler
