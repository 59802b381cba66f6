"""A server that answers with whatever bytes a test wants, also without an end; counts what it could send."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

#: Pieces of an answer, perhaps without an end; the argument is the request's path.
Answer = Callable[[str], Iterable[bytes]]
_MOST = 1 << 30  # bytes after which a server stops that nobody stopped: the test has failed then


@dataclass
class Hostile:
    """What was asked, and what was sent."""

    host: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # method, path
    headers: list[str] = field(default_factory=list)  # whole heads of requests
    sent: int = 0  # bytes that the client took

    def count(self, path: str) -> int:
        return sum(bool(re.search(path, asked)) for _, asked in self.asked)


@contextmanager
def hostile(answers: Mapping[str, Answer | bytes]) -> Iterator[Hostile]:
    """A server whose *answers* are found by a pattern of "METHOD path", the first that fits; else 404.

    HOST in bytes stands for its own address.
    """
    told, ended = Hostile(), threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while (line := self.rfile.readline(1 << 16)) not in (b"\r\n", b""):
                head += line
            if not head:
                return
            method, path, _ = head.decode("latin-1").split(" ", 2)
            told.asked.append((method, path))
            told.headers.append(head.decode("latin-1"))
            given = next((one for key, one in answers.items() if re.search(key, f"{method} {path}")), None)
            pieces = given(path) if callable(given) else [given or document(b"", "404 Not Found")]
            with suppress(OSError):
                for piece in pieces:
                    self.request.sendall(piece.replace(b"HOST", told.host.encode()))
                    told.sent += len(piece)
                    if ended.is_set() or told.sent > _MOST:
                        break

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is no news."""

    with Server(("127.0.0.1", 0), Handler) as server:
        told.host = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield told
        ended.set()
        server.shutdown()
        thread.join()


def document(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def endless(head: bytes, piece: bytes, *, pause: float = 0.0) -> Answer:
    """*head*, then *piece* again and again."""

    def pieces(_: str) -> Iterator[bytes]:
        yield head
        while True:
            yield piece
            if pause:
                threading.Event().wait(pause)

    return pieces
