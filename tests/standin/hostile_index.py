"""An index that means harm: raw answers by path, endless ones included; and a lock from it, measured."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.standin.index_server import metadata_of, wheel_bytes
from torchkiln.util.places import ROOT

JSON = "application/vnd.pypi.simple.v1+json"
Pieces = Iterator[bytes]
Answer = Callable[[str], "Pieces | None"]  # path → what goes out, headers included; None: 404


def head(kind: str = "text/html", *more: str, status: str = "200 OK") -> bytes:
    """Status and headers of an answer that ends with its connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *more]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def whole(body: bytes, kind: str = "text/html", *more: str, status: str = "200 OK") -> Pieces:
    """An answer that is what it says."""
    yield head(kind, f"Content-Length: {len(body)}", *more, status=status) + body


def for_ever(first: bytes, again: bytes) -> Pieces:
    """*first*, then *again* until the other side has enough; 4 GiB are for ever."""
    yield first
    block = again * max(1, (1 << 16) // len(again))
    for _ in range((4 << 30) // len(block)):
        yield block


def slowly(first: bytes, again: bytes, pause: float = 0.05) -> Pieces:
    """*first*, then *again* with pauses: no pause is long enough for a time limit between two bytes."""
    yield first
    for _ in range(100_000):
        time.sleep(pause)
        yield again


def page(*wheels: tuple[str, bytes], more: str = "") -> bytes:
    """An HTML page with these wheels."""
    links = "".join(
        f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}"{more}>{name}</a>\n'
        for name, data in wheels
    )
    return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


class HostileIndex:
    """Serves what *answer* says on this machine; use it in a ``with``."""

    def __init__(self, answer: Answer) -> None:
        outer = self
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                request = self.rfile.readline().decode("latin-1").split(" ")
                wanted = ""
                while (line := self.rfile.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"range:"):
                        wanted = line.partition(b"=")[2].decode().strip()
                outer.asked.append(request[1])
                pieces = outer.answer(f"{request[1]} {wanted}".strip())
                if pieces is None:
                    pieces = whole(b"", status="404 Not Found")
                try:
                    for piece in pieces:
                        self.request.sendall(piece)
                        if request[0] == "HEAD":
                            break
                    self.request.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: object) -> None:
                """Whoever hangs up is right."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> HostileIndex:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple"


def files(*wheels: tuple[str, bytes], beside: bool = False) -> Answer:
    """The wheels' own bytes, with ranges; *beside*: their METADATA too."""
    by_name = dict(wheels)

    def answer(asked: str) -> Pieces | None:
        path, _, wanted = asked.partition(" ")
        name = path.removeprefix("/files/")
        if beside and name.endswith(".metadata") and name[:-9] in by_name:
            return whole(metadata_of(by_name[name[:-9]]), "application/octet-stream")
        if name not in by_name:
            return None
        return ranged(by_name[name], wanted)

    return answer


def ranged(data: bytes, wanted: str) -> Pieces:
    """*data*, or the part of it that is *wanted*."""
    if not wanted:
        return whole(data, "application/octet-stream")
    first, _, last = wanted.partition("-")
    end = min(int(last or len(data) - 1), len(data) - 1)
    told = f"Content-Range: bytes {first}-{end}/{len(data)}"
    return whole(data[int(first) : end + 1], "application/octet-stream", told, status="206 Partial Content")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a lock from a hostile index ended."""

    kind: str  # of the error; "" where there was none
    code: int
    message: str
    peak: int  # bytes, of us and of uv together


_CHILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from torchkiln.errors import KilnError
from torchkiln.index import session, uv
from torchkiln.util.http import retry
from torchkiln.index.package_index import open_index
from torchkiln.store.store import Store
from torchkiln.model.index import IndexRequest
retry.pause = lambda *_: 0.0
session.TOTAL = session.HEADERS = float(sys.argv[4])
wanted = IndexRequest(requirements=("demo",), constraints=(), python="3.11", glibc=(2, 36),
                      as_of="2026-09-01", keep=(), bound=())
highest, resident = [0], uv._resident
def watched(pid):
    highest[0] = max(highest[0], resident(pid))
    return resident(pid)
uv._resident = watched
def own():  # not getrusage's, which counts what was there before exec
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
told = ["", 0, ""]
try:
    found = open_index({"UV_DEFAULT_INDEX": sys.argv[1]}, Store(Path(sys.argv[2]))).wheels(wanted)
    told[2] = " ".join(f"{one.name}=={one.version}" for one in found)
except KilnError as error:
    told = [type(error).__name__, error.exit_code, error.message]
print(json.dumps([*told, own() + highest[0]]))
"""


def lock_from(url: str, cache: Path, *, patience: float = 300) -> Outcome:
    """What a lock of the project `demo` comes to, in a process of its own.

    :param patience: seconds that a page may take.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD, url, str(cache), str(ROOT), str(patience)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cache)},
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    kind, code, message, peak = json.loads(ran.stdout)
    return Outcome(kind=kind, code=code, message=message, peak=peak)


@functools.cache
def bomb(megabytes: int) -> bytes:
    """So many MiB of nothing, by gzip."""
    return gzip.compress(bytes(megabytes << 20), 9)


@functools.cache
def directory_bomb(count: int) -> tuple[str, bytes]:
    """A wheel whose zip directory has *count* entries, and which is not larger for it than it must be."""
    name, data = wheel_bytes("demo", "1.0")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.start_dir
    line = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
    many = (line + b"x") * count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(many), start, 0)
    return name, data[:start] + many + end
