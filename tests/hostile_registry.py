"""An HTTP server that sends arbitrary bytes, even endless responses, and counts the sent bytes."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.servers.background import InBackground, QuietServer

#: A function of the request's path that yields the bytes of a response, possibly without end.
Answer = Callable[[str], Iterable[bytes]]
_MOST = 1 << 30  # bytes: the server stops here if the client has not disconnected; then the test fails


@dataclass
class Hostile:
    """The received requests and the number of sent bytes."""

    host: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)  # method, path
    headers: list[str] = field(default_factory=list)  # the complete headers of requests
    sent: int = 0  # bytes

    def count(self, path: str) -> int:
        return sum(bool(re.search(path, requested)) for _, requested in self.requests)


@contextmanager
def hostile(answers: Mapping[str, Answer | bytes]) -> Iterator[Hostile]:
    """A server with *answers*: the keys are patterns for "METHOD path". Without a match, it sends 404.

    In answers, HOST is replaced by the server's address.
    """
    server_state, ended = Hostile(), threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while (line := self.rfile.readline(1 << 16)) not in (b"\r\n", b""):
                head += line
            if not head:
                return
            method, path, _ = head.decode("latin-1").split(" ", 2)
            server_state.requests.append((method, path))
            server_state.headers.append(head.decode("latin-1"))
            matched = next((one for key, one in answers.items() if re.search(key, f"{method} {path}")), None)
            found = document(b"", "404 Not Found") if matched is None else matched
            pieces = found(path) if callable(found) else [found]
            with suppress(OSError):
                for piece in pieces:
                    self.request.sendall(piece.replace(b"HOST", server_state.host.encode()))
                    server_state.sent += len(piece)
                    if ended.is_set() or server_state.sent > _MOST:
                        break

    class Server(InBackground):
        _server = QuietServer(("127.0.0.1", 0), Handler)

    server_state.host = f"127.0.0.1:{Server._server.server_address[1]}"
    with Server():
        yield server_state
        ended.set()


def document(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A complete HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def endless(head: bytes, piece: bytes, *, pause: float = 0.0) -> Answer:
    """An answer that sends *head*, then *piece* again and again without end."""

    def pieces(_: str) -> Iterator[bytes]:
        yield head
        while True:
            yield piece
            if pause:
                threading.Event().wait(pause)

    return pieces
