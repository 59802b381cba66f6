"""A server whose responses a function makes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType

from tests.servers.background import InBackground, QuietHttpServer

#: Status, headers and body.
Answer = tuple[int, Mapping[str, str], bytes]
NOT_FOUND: Answer = (404, {}, b"")


class QuietHandler(BaseHTTPRequestHandler):
    """A handler without a log."""

    def answer(
        self, status: int, headers: Mapping[str, str] = MappingProxyType({}), body: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if status != 204 or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None: ...


class Answering(InBackground):
    """Answers each GET and HEAD by `answer(path, headers)`; a context manager."""

    def __init__(
        self,
        answer: Callable[[str, Mapping[str, str]], Answer],
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(*answer(self.path, self.headers))

            do_HEAD = do_GET

        self._server = QuietHttpServer((host, 0), Handler)
        self.port = self._server.server_port
        if tls:
            # The handshake is done in the handler's thread. In the accept loop, it would block other clients.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{path}"
