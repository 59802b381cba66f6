"""A hostile index that sends raw, possibly endless responses.

`lock_from` runs `lock` against it, and measures the peak memory.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import socket
import socketserver
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked
from tests.servers.background import InBackground, QuietServer
from tests.servers.index_server import wheel_bytes
from torchkiln.errors import KilnError
from torchkiln.index import relay, session, uv
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.pages import Pages
from torchkiln.index.settings import index_settings
from torchkiln.model.index import IndexRequest
from torchkiln.store.store import Store
from torchkiln.util.http import retry

JSON = "application/vnd.pypi.simple.v1+json"
Pieces = Iterator[bytes]
Answer = Callable[[str], "Pieces | None"]  # path → the raw response with headers; None: 404


def head(kind: str = "text/html", *more: str, status: str = "200 OK") -> bytes:
    """Status and headers of a response that ends with the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *more]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def response(body: bytes, kind: str = "text/html", *more: str, status: str = "200 OK") -> Pieces:
    """A valid response."""
    yield head(kind, f"Content-Length: {len(body)}", *more, status=status) + body


def for_ever(first: bytes, again: bytes) -> Pieces:
    """*first*, then *again* until the client disconnects; at most 4 GiB."""
    yield first
    block = again * max(1, (1 << 16) // len(again))
    for _ in range((4 << 30) // len(block)):
        yield block


def slowly(first: bytes, again: bytes, pause: float = 0.05) -> Pieces:
    """*first*, then *again* with pauses that are shorter than the read timeout."""
    yield first
    for _ in range(100_000):
        time.sleep(pause)
        yield again


def page(*wheels: tuple[str, bytes], more: str = "") -> bytes:
    """An HTML index page with links to *wheels*; *more* are attributes of the links."""
    links = "".join(
        f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}"{more}>{name}</a>\n'
        for name, data in wheels
    )
    return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


class HostileIndex(InBackground):
    """Serves the responses of *answer* on this machine; a context manager."""

    def __init__(self, answer: Answer) -> None:
        outer = self
        self.answer, self.requests = answer, []  # type: ignore[var-annotated]

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                request = self.rfile.readline().decode("latin-1").split(" ")
                byte_range = ""
                while (line := self.rfile.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"range:"):
                        byte_range = line.partition(b"=")[2].decode().strip()
                outer.requests.append(request[1])
                pieces = outer.answer(f"{request[1]} {byte_range}".strip())
                if pieces is None:
                    pieces = response(b"", status="404 Not Found")
                try:
                    for piece in pieces:
                        self.request.sendall(piece)
                        if request[0] == "HEAD":
                            break
                    self.request.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

        self._server = QuietServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple"


def files(*wheels: tuple[str, bytes]) -> Answer:
    """Serve *wheels*, with support for range requests."""
    by_name = dict(wheels)

    def answer(request: str) -> Pieces | None:
        path, _, byte_range = request.partition(" ")
        name = path.removeprefix("/files/")
        if name not in by_name:
            return None
        return ranged(by_name[name], byte_range)

    return answer


def ranged(data: bytes, byte_range: str) -> Pieces:
    """*data*, or the part in *byte_range*."""
    if not byte_range:
        return response(data, "application/octet-stream")
    first, _, last = byte_range.partition("-")
    end = min(int(last or len(data) - 1), len(data) - 1)
    content_range = f"Content-Range: bytes {first}-{end}/{len(data)}"
    return response(
        data[int(first) : end + 1], "application/octet-stream", content_range, status="206 Partial Content"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of `lock` with a hostile index."""

    kind: str  # the class of the error; "" if there was none
    code: int
    message: str
    peak: int  # bytes, of torchkiln and uv together


REQUEST = IndexRequest(
    requirements=("demo",),
    constraints=(),
    python="3.11",
    glibc=(2, 36),
    as_of="2026-09-01",
    keep=(),
    bound=(),
)


def lock_here() -> None:
    """Lock in this process, with the index and cache in sys.argv, and print the Outcome."""
    _, url, cache, seconds = sys.argv
    retry.pause = lambda *_: 0.0
    session.TOTAL = session.HEADERS = float(seconds)
    relay.PROJECTS = 100
    highest, resident = 0, uv._resident

    def watched(pid: int) -> int:
        nonlocal highest
        highest = max(highest, resident(pid))
        return resident(pid)

    uv._resident = watched
    result: list[Any] = ["", 0, ""]
    try:
        settings = index_settings({"UV_DEFAULT_INDEX": url}, pip_config="")
        found = PackageIndex(Pages(settings, Store(Path(cache)))).wheels(REQUEST)
        result[2] = " ".join(f"{wheel.name}=={wheel.version}" for wheel in found)
    except KilnError as error:
        result = [type(error).__name__, error.exit_code, error.message]
    # getrusage() cannot be used: its maximum includes the memory before exec.
    own = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
    sys.stdout.write(json.dumps([*result, own + highest]))


def lock_from(url: str, cache: Path, *, timeout: float = 300) -> Outcome:
    """Lock the package `demo` in a separate process.

    :param timeout: seconds for a response.
    """
    ran = forked.run(
        (url, str(cache), str(timeout)),
        env={"PATH": "/usr/bin:/bin", "HOME": str(cache)},
        target="tests.servers.hostile_index:lock_here",
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    kind, code, message, peak = json.loads(ran.stdout)
    return Outcome(kind=kind, code=code, message=message, peak=peak)


@functools.cache
def bomb(megabytes: int) -> bytes:
    """*megabytes* MiB of zeros, compressed with gzip."""
    return gzip.compress(bytes(megabytes << 20), 9)


@functools.cache
def directory_bomb(count: int) -> tuple[str, bytes]:
    """A wheel whose zip directory has *count* entries, of minimal size."""
    name, data = wheel_bytes("demo", "1.0")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.start_dir
    line = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
    many = (line + b"x") * count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(many), start, 0)
    return name, data[:start] + many + end
