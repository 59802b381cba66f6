"""A server for the pools of an archive and its snapshots, at the paths of the real services.

/debian/PATH  /debian-security/PATH  /archive/debian/TIME/PATH  /archive/debian-security/TIME/PATH
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.servers.background import InBackground

_SNAPSHOT = re.compile(r"/archive/(debian|debian-security)/(\d{8}T\d{6}Z)/(.+)")


@dataclass
class DebServer(InBackground):
    """`pools` has the present files by path, `snapshots` those of each time by archive, time and path."""

    pools: dict[str, bytes] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # of the next snapshot answers
    requested: list[str] = field(default_factory=list)
    most_at_once: int = 0  # requests to snapshots

    def __post_init__(self) -> None:
        outer, lock, self._running = self, threading.Lock(), 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requested.append(self.path)
                found = _SNAPSHOT.fullmatch(self.path)
                if found is None:
                    self._answer(outer.pools.get(self.path.lstrip("/")))
                    return
                with lock:
                    outer._running += 1
                    outer.most_at_once = max(outer.most_at_once, outer._running)
                time.sleep(0.02)
                status = outer.statuses.pop(0) if outer.statuses else None
                with lock:
                    outer._running -= 1
                if status:
                    self._answer(b"", *status)
                else:
                    self._answer(outer.snapshots.get((found[1], found[2]), {}).get(found[3]))

            def _answer(
                self, data: bytes | None, code: int = 200, headers: dict[str, str] | None = None
            ) -> None:
                self.send_response(404 if data is None else code)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{path}"
