"""Our indexes → an index on this machine for uv: uv sees what we fetched, bounded and read strictly.

uv has no limits of its own: one page without an end took it to 20 GB. So it gets no address but this one.
Each page is fetched by our session, and written anew with the few fields that a resolver needs; of a wheel uv
is given METADATA alone. What went wrong is kept, in our words, for whoever started uv.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed, KilnError, Unresolvable
from torchkiln.index.dates import old_enough
from torchkiln.index.listing import Listed
from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages
from torchkiln.index.read_page import release_files
from torchkiln.index.session import PATIENCE
from torchkiln.model.cell import Source

PROJECTS = 1_000  # whose pages a resolver may ask for; a cell has 130 packages
FILES = 120_000  # on all pages together; a cell has 64,000
METADATA = 3_000  # files of metadata
_BYTES = 64 << 20  # of metadata
_JSON = "application/vnd.pypi.simple.v1+json"
_TEXT = 200  # characters of a field that is passed on


class Relay:
    """The index, as long as its context lasts. Safe: uv asks from many threads."""

    def __init__(self, pages: Pages, *, as_of: str) -> None:
        self.failures: list[Exception] = []  # in the order in which they came
        self.missing: dict[str, Unresolvable] = {}  # projects that their index does not have
        self.left_out: dict[str, tuple[str, ...]] = {}  # project → files that uv was not told of, and why
        self._pages, self._as_of = pages, as_of
        self._metadata = Metadata(pages)
        self._files: dict[str, tuple[Listed, str, Source]] = {}  # sha256 → file, base of its address, index
        self._projects: set[tuple[str, str]] = set()
        self._told = self._bytes = 0
        self._guard = threading.Lock()
        self._token = secrets.token_hex(16)  # others on this machine must not use our credentials
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
        """The address of *index*, for uv."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._token}/{index.value}"

    def answer(self, path: str) -> bytes | None:
        """The body for *path*; None: there is no such thing.

        :raises KilnError: an index is at fault; it is kept in `failures`, too.
        """
        try:
            match [unquote(part) for part in path.strip("/").split("/")]:
                case [token, source, project] if token == self._token and source in _SOURCES:
                    return self._page(project, Source(source))
                case [token, "files", sha256, name] if token == self._token and name.endswith(".metadata"):
                    return self._beside(sha256)
        except Exception as error:  # whatever it is, it must end the run and not this thread
            self.failures.append(error)
            raise
        return None

    def _page(self, project: str, index: Source) -> bytes | None:
        name = canonicalize_name(project)
        with self._guard:
            self._projects.add((name, index.value))
            if len(self._projects) > PROJECTS:
                raise _endless(f"{name}: the requirements lead to more than {PROJECTS} projects")
        try:
            with self._pages.session.deadlines.within(PATIENCE):
                old, base = old_enough(self._pages, name, index, self._as_of)
        except Unresolvable as error:
            self.missing[name] = error
            return None
        files, left_out = release_files(old, name)
        self.left_out[name] = tuple(f"{file}: {why}" for file, why in left_out.items())
        with self._guard:
            self._files |= {file.sha256: (file, base, index) for file in files}
            if len(self._files) > FILES:
                raise _endless(f"{name}: the requirements lead to more than {FILES} files")
        place = f"/{self._token}/files"
        document = {
            "meta": {"api-version": "1.1"},
            "name": name,
            "versions": [],
            "files": [_entry(file, place) for file in files],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def _beside(self, sha256: str) -> bytes | None:
        if sha256 not in self._files:
            return None
        file, base, index = self._files[sha256]
        with self._guard:
            self._told += 1
            if self._told > METADATA or self._bytes > _BYTES:
                raise _endless(f"{file.filename}: the requirements lead to more than {METADATA} wheels")
        data = self._metadata.for_resolver(file, base, index)
        with self._guard:
            self._bytes += len(data)
        return data


_SOURCES: Collection[str] = (Source.DEFAULT.value, Source.PYTORCH.value)


def _entry(file: Listed, place: str) -> dict[str, Any]:
    """What uv is told of *file*. Its upload time is not: `old_enough` looked at it."""
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": f"{place}/{file.sha256}/{quote(file.filename)}",
        "hashes": {"sha256": file.sha256},
    }
    if file.filename.endswith(".whl"):
        entry["core-metadata"] = True
    if file.requires_python:
        entry["requires-python"] = file.requires_python[:_TEXT]
    if file.yanked is not None:
        entry["yanked"] = file.yanked[:_TEXT] or True
    return entry


def _endless(what: str) -> BuildFailed:
    return BuildFailed(
        what, hint="the index is at fault, or a requirement in matrix.yaml is too wide: bound it"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """uv hangs up when it is done."""


def _handler(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

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
