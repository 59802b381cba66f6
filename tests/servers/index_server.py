"""A package index on this machine: PyTorch's simple-index layout, with injectable faults.

Pages are at ``/<index>/<project>/`` with the hash in the fragment of each link, files at ``/files/<index>/``.
In links, a "+" in a file name is escaped as %2B, as in PyTorch's index.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import socket
import struct
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.servers.background import InBackground, QuietHttpServer


def wheel_bytes(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    python: str = "",
    tag: str = "py3-none-any",
    payload: bytes = b"",
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[str, bytes]:
    """A tiny installable wheel with *files*: its file name and its bytes."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {python}\n" if python else ""
    metadata += "".join(f"Requires-Dist: {require}\n" for require in requires)
    content = {
        **files,
        f"{name.replace('-', '_')}/__init__.py": payload,
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    record = ""
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    content[f"{stem}.dist-info/RECORD"] = (record + f"{stem}.dist-info/RECORD,,\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return f"{stem}-{tag}.whl", out.getvalue()


def metadata_of(wheel: bytes) -> bytes:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA")))


@dataclass
class Faults:
    """Faults in responses with files. Each item of a list is for one response; other values are for all."""

    errors: list[int] = field(default_factory=list)  # statuses of the next responses
    short: list[int] = field(default_factory=list)  # the next bodies are cut after this many bytes
    no_ranges: bool = False
    loop: bool = False  # redirect to itself
    extra: bytes = b""  # appended to every file
    retry_after: str = ""
    only: str = ""  # the faults below apply only to paths that contain this
    pace: float = 0.0  # bytes a second on each connection
    silent: float = 0.0  # seconds without a byte in the middle of a body, unless it is the end of a file
    resets: list[int] = field(default_factory=list)  # the next connections are reset after this many bytes
    flip: int | None = None  # the byte at this offset is changed
    length_error: int = 0  # added to Content-Length
    head_error: int = 0  # added to Content-Length of the response to a HEAD
    shift: int = 0  # added to the start in Content-Range
    deleted: bool = False  # 404, although the page lists the file
    page_errors: list[int] = field(default_factory=list)
    page_loop: bool = False
    page_body: bytes | None = None  # replaces every page
    page_type: str = "text/html"
    down: bool = False  # all connections are cut


@dataclass
class Sent:
    """The bytes of a file sent in a response."""

    path: str
    requested: str  # the requested Range
    count: int = 0  # bytes of the body


class IndexServer(InBackground):
    """A server with any number of indexes; a context manager."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}  # (index, project, file name) → content
        self.dates: dict[str, str] = {}  # file name → upload time, in the page
        self.moved = ""  # a prefix of file URLs; after a change, the former URLs give 404
        self.faults = Faults()
        self.etags = False
        self.metadata = False  # PEP 658: each wheel's METADATA beside it
        self.beside: dict[str, bytes] = {}  # file name → METADATA that is served for it, even if wrong
        self.yanked: dict[str, str] = {}  # file name → the reason
        self.json = False  # PEP 691 pages, with sizes and upload times (PEP 700)
        self.requests: list[tuple[str, str, str]] = []  # (method, path, Range)
        self.counts: Counter[int] = Counter()  # responses by status
        self.logins: list[str] = []  # Authorization headers
        self.sent: list[Sent] = []  # an entry for each response with bytes of a file
        self._server: QuietHttpServer = QuietHttpServer(("127.0.0.1", 0), self._handler())

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def url(self, index: str) -> str:
        return f"{self.origin}/{index}"

    def add(
        self, index: str, name: str, version: str, *, date: str = "", **details: Any
    ) -> tuple[str, bytes]:
        """Add a wheel; returns its file name and bytes."""
        filename, data = wheel_bytes(name, version, **details)
        self.files[index, name, filename] = data
        if date:
            self.dates[filename] = date
        return filename, data

    def page(self, index: str, project: str) -> bytes | None:
        """The project's page, or None."""
        if self.json:
            return self._json_page(index, project)
        links = []
        for (where, name, filename), data in self.files.items():
            if (where, name) == (index, project):
                digest = hashlib.sha256(data).hexdigest()
                href = f"{self.moved}/files/{index}/{quote(filename, safe='')}#sha256={digest}"
                more = f' data-upload-time="{self.dates[filename]}"' if filename in self.dates else ""
                if self.metadata:
                    digest = hashlib.sha256(self.beside.get(filename) or metadata_of(data)).hexdigest()
                    more += f' data-dist-info-metadata="sha256={digest}" data-core-metadata="sha256={digest}"'
                if filename in self.yanked:
                    more += f' data-yanked="{self.yanked[filename]}"'
                links.append(f'<a href="{href}"{more}>{filename}</a><br/>\n')
        if not links:
            return None
        return f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>".encode()

    def _json_page(self, index: str, project: str) -> bytes | None:
        files = [
            {
                "filename": filename,
                "url": f"{self.moved}/files/{index}/{quote(filename, safe='')}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                **({"yanked": self.yanked[filename] or True} if filename in self.yanked else {}),
                **({"upload-time": self.dates[filename]} if filename in self.dates else {}),
            }
            for (where, name, filename), data in self.files.items()
            if (where, name) == (index, project)
        ]
        document = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}
        return json.dumps(document).encode() if files else None

    def file(self, path: str) -> bytes | None:
        """The content at *path*, or None."""
        if not path.startswith(f"{self.moved}/files/"):
            return None
        index, _, filename = path.removeprefix(f"{self.moved}/files/").rpartition("/")
        requested = filename.removesuffix(".metadata")
        found = next(
            (data for (where, _, one), data in self.files.items() if (where, one) == (index, requested)), None
        )
        if found and requested != filename and self.metadata:
            return self.beside.get(requested) or metadata_of(found)
        return found

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None: ...

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                if outer.faults.down:
                    self.reset()
                    return
                path, requested = unquote(urlsplit(self.path).path), self.headers.get("Range", "")
                outer.requests.append((self.command, path, requested))
                if login := self.headers.get("Authorization"):
                    outer.logins.append(login)
                if "/files/" in path:
                    self.answer_file(outer.file(path), requested)
                    return
                if outer.faults.page_errors:
                    self.answer(outer.faults.page_errors.pop(0), b"")
                    return
                if outer.faults.page_loop:
                    self.answer(302, b"", {"Location": self.path})
                    return
                index, _, project = path.strip("/").rpartition("/")
                page = outer.page(index, project)
                if page and outer.faults.page_body is not None:
                    page = outer.faults.page_body
                if page is None:
                    self.answer(404, b"")
                    return
                etag = f'"{hashlib.sha256(page).hexdigest()}"' if outer.etags else ""
                if etag and self.headers.get("If-None-Match") == etag:
                    self.answer(304, b"")
                else:
                    json_type = "application/vnd.pypi.simple.v1+json"
                    kind = {"Content-Type": json_type if outer.json else outer.faults.page_type}
                    self.answer(200, page, kind | ({"ETag": etag} if etag else {}))

            def answer_file(self, data: bytes | None, requested: str) -> None:
                faults = outer.faults
                if faults.loop:
                    self.answer(302, b"", {"Location": self.path})
                elif faults.errors:
                    late = {"Retry-After": faults.retry_after} if faults.retry_after else {}
                    self.answer(faults.errors.pop(0), b"", late)
                elif data is None or (faults.deleted and faults.only in self.path):
                    self.answer(404, b"")
                elif requested and not faults.no_ranges:
                    data = self.spoilt(data) + faults.extra
                    start, _, end = requested.removeprefix("bytes=").partition("-")
                    first, last = int(start), min(int(end or len(data)), len(data) - 1)
                    headers = {"Content-Range": f"bytes {first + faults.shift}-{last}/{len(data)}"}
                    self.answer(206, data[first : last + 1], headers)
                else:
                    self.answer(200, self.spoilt(data) + faults.extra)

            def spoilt(self, data: bytes) -> bytes:
                at = outer.faults.flip
                if at is None or outer.faults.only not in self.path:
                    return data
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

            def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                outer.counts[status] += 1
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                is_file = "/files/" in self.path and status in (200, 206) and outer.faults.only in self.path
                error = outer.faults.head_error if self.command == "HEAD" else outer.faults.length_error
                length_error = error if is_file else 0
                if status != 304:
                    self.send_header("Content-Length", str(len(body) + length_error))
                self.end_headers()
                if self.command == "HEAD" or status == 304:
                    return
                short = status in (200, 206) and outer.faults.short and "/files/" in self.path
                body = body[: outer.faults.short.pop(0)] if short else body
                self.close_connection |= bool(length_error or short)
                if not is_file:
                    self.wfile.write(body)
                elif outer.faults.resets:
                    self.send(body[: outer.faults.resets.pop(0)])
                    self.reset()
                else:
                    self.send(body)

            def reset(self) -> None:
                """End the connection with RST, not FIN (linger of 0)."""
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                self.connection.close()

            def send(self, body: bytes) -> None:
                """Send the body of a file at the speed of `Faults.pace`, and count the sent bytes."""
                faults, done = outer.faults, 0
                piece = max(int(faults.pace / 50), 1) if faults.pace else 1 << 20
                sent = Sent(unquote(urlsplit(self.path).path), self.headers.get("Range", ""))
                outer.sent.append(sent)
                while done < len(body):
                    part = body[done : done + piece]
                    self.wfile.write(part)
                    if (
                        faults.silent
                        and not sent.requested[-1:].isdigit()
                        and done <= len(body) // 2 < done + len(part)
                    ):
                        time.sleep(faults.silent)
                    elif faults.pace:
                        time.sleep(len(part) / faults.pace)
                    done += len(part)
                    sent.count = done
                    if faults.down:
                        self.reset()
                        return

        return Handler
