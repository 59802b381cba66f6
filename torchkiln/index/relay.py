"""A local index server for uv that relays the configured indexes with limits.

uv does not limit what it reads: with an endless page it used 20 GB of memory. So uv gets only the URL of this
server, which downloads and parses each page, and serves the few fields that a resolver needs. Of a wheel, the
server offers only METADATA. It keeps errors of the indexes for the caller.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed, KilnError, Unresolvable
from torchkiln.index.dates import uploaded_before
from torchkiln.index.listing import ListedFile
from torchkiln.index.local import excludes_index, merged, of_project
from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages
from torchkiln.index.read_page import release_files
from torchkiln.index.session import TOTAL
from torchkiln.model.cell import Source
from torchkiln.model.index import LocalWheel

PROJECTS = 1_000  # pages that a resolver may request; a cell has 130 packages, one with vllm 230
FILES = 300_000  # files on all pages together; a cell has 64,000, one with vllm 164,000
METADATA = 3_000  # METADATA files that uv may request
_BYTES = 64 << 20  # bytes of all METADATA files together
_JSON = "application/vnd.pypi.simple.v1+json"
_TEXT = 200  # characters of a field in a page for uv


class Relay:
    """The server, while its context lasts; thread-safe, because uv sends requests in parallel.

    :param local: wheels that no index has.
    """

    def __init__(self, pages: Pages, *, as_of: str, local: Collection[LocalWheel] = ()) -> None:
        self.failures: list[Exception] = []  # in the order in which they happened
        self.missing: dict[str, Unresolvable] = {}  # projects that their index does not have
        self.left_out: dict[str, tuple[str, ...]] = {}  # project → files that uv does not see, with reasons
        self._pages, self._as_of, self._local = pages, as_of, local
        self._own_metadata = {wheel.sha256: wheel.metadata for wheel in local}
        self._metadata = Metadata(pages)
        self._files: dict[str, tuple[ListedFile, str, Source]] = {}  # sha256 → file, base URL, index
        self._projects: set[tuple[str, str]] = set()
        self._waits, self._since, self._waited = 0, 0.0, 0.0
        self._metadata_files = self._metadata_bytes = 0
        self._guard = threading.Lock()
        self._token = secrets.token_hex(16)  # other users of this machine must not use the user's credentials
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, index: Source) -> str:
        """The URL of *index*, for uv."""
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
                raise _limit_exceeded(f"{name}: the requirements lead to more than {PROJECTS} projects")
        local = of_project(self._local, name)
        old, base = ((), "") if excludes_index(local) else self._listed(name, index)
        if base is None and not local:
            return None
        listed, left_out = release_files(old, name)
        files = merged(listed, local)
        self.left_out[name] = tuple(f"{file}: {why}" for file, why in left_out.items())
        with self._guard:
            self._files |= {file.sha256: (file, base or "", index) for file in files}
            if len(self._files) > FILES:
                raise _limit_exceeded(f"{name}: the requirements lead to more than {FILES} files")
        folder = f"/{self._token}/files"
        document = {
            "meta": {"api-version": "1.1"},
            "name": name,
            "versions": [],
            "files": [_entry(file, folder) for file in files],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._guard:
            if not self._waits:
                self._since = time.monotonic()
            self._waits += 1
        try:
            yield
        finally:
            with self._guard:
                self._waits -= 1
                if not self._waits:
                    self._waited += time.monotonic() - self._since

    def waited(self) -> float:
        """The seconds that uv waited for METADATA of local wheels; its time limit does not include them."""
        with self._guard:
            return self._waited + (time.monotonic() - self._since if self._waits else 0.0)

    def _listed(self, name: str, index: Source) -> tuple[tuple[ListedFile, ...], str | None]:
        """The files on the page of *name*, and their base URL; None: *index* does not have the project."""
        try:
            with self._pages.session.deadlines.within(TOTAL):
                return uploaded_before(self._pages, name, index, self._as_of)
        except Unresolvable as error:
            self.missing[name] = error
            return (), None

    def _beside(self, sha256: str) -> bytes | None:
        if sha256 not in self._files:
            return None
        if sha256 in self._own_metadata:
            with self._waiting():
                return self._own_metadata[sha256]()
        file, base, index = self._files[sha256]
        with self._guard:
            self._metadata_files += 1
            if self._metadata_files > METADATA:
                raise _limit_exceeded(
                    f"{file.filename}: the requirements lead to more than {METADATA} wheels"
                )
            if self._metadata_bytes > _BYTES:
                raise _limit_exceeded(f"{file.filename}: METADATA files with more than {_BYTES} bytes")
        data = self._metadata.for_resolver(file, base, index)
        with self._guard:
            self._metadata_bytes += len(data)
        return data


_SOURCES: Collection[str] = (Source.DEFAULT.value, Source.PYTORCH.value)


def _entry(file: ListedFile, folder: str) -> dict[str, Any]:
    """*file* for uv, without its upload time, which `uploaded_before` has checked."""
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


def _limit_exceeded(message: str) -> BuildFailed:
    return BuildFailed(
        message, hint="the index is at fault, or a requirement in matrix.yaml is too wide: add a bound"
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
