"""Answers that no registry should give: each ends in a sentence and exit 9, none in a traceback."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pushing import image, push_to
from torchkiln.errors import RegistryError
from torchkiln.registry.credentials import Login

PING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def answering(answers: dict[str, bytes]) -> Iterator[str]:
    """A server that has one answer for each method, and PING for /v2/; its host."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while (line := self.rfile.readline(1 << 16)) not in (b"\r\n", b""):
                head += line
            method, _, rest = head.decode().partition(" ")
            ping = rest.startswith("/v2/ ") and "PING" not in answers
            given = PING if ping else answers["PING" if rest.startswith("/v2/ ") else method]
            self.wfile.write(given.replace(b"HOST", self.server_host()))

        def server_host(self) -> bytes:
            return b"127.0.0.1:%d" % server.server_address[1]

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is no news."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def plain(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


MISSING = plain("404 Not Found")
DEEP = b"[" * 100_000
BEGUN = plain("202 Accepted", b"", "Location: /v2/team/app/blobs/uploads/1")
CHALLENGE = 'WWW-Authenticate: Bearer realm="http' + '://HOST/token",service="x"'


@pytest.mark.parametrize(
    "answers",
    [
        {"PING": b""},
        {"PING": b"SSH-2.0-OpenSSH_9.2\r\n"},
        {"PING": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2000 + b"\r\n"},
        {"PING": b"HTTP/1.1 200 OK\r\nA: " + b"b" * (1 << 17) + b"\r\n\r\n"},
        {"PING": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"},
        {"PING": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone"},
        {"PING": plain("302 Found", b"", "Location: /v2/")},
        {"PING": plain("302 Found", b"", "Location: http" + "://[")},
        {"PING": plain("302 Found", b"", "Location: file:///etc/passwd")},
        {"PING": plain("418 Teapot", DEEP)},
        {"PING": plain("503 No", DEEP)},
        {"PING": plain("401 No", DEEP, "WWW-Authenticate: " + 'a="b", ' * 2000)},
        {"PING": plain("401 No", b"", CHALLENGE), "HEAD": MISSING, "GET": plain("200 OK", DEEP)},
        {"PING": plain("401 No", b"", CHALLENGE), "HEAD": MISSING, "GET": plain("200 OK", b"[7]")},
        {"PING": plain("401 No", b"", CHALLENGE), "HEAD": MISSING, "GET": plain("200 OK", b"\xff\xfe")},
        {"PING": plain("401 No", b"", CHALLENGE.replace("HOST", "HOST:9:9")), "HEAD": MISSING},
        {"HEAD": plain("403 No", b"")},
        {"HEAD": plain("200 OK", b"", "Docker-Content-Digest: \x1b[31m" + "x" * 500)},
        {"HEAD": plain("299 Odd", b"")},
        {"HEAD": MISSING, "POST": plain("202 Accepted")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: file:///etc/passwd")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: http" + "://[")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: http" + "://HOST99999/")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: //")},
        {"HEAD": MISSING, "POST": plain("201 Created")},
        {"HEAD": MISSING, "POST": plain("400 Bad", b'{"errors":[{"code":[[]],"message":{}}, 7]}')},
        {"HEAD": MISSING, "POST": plain("400 Bad", b'{"errors":[{"message":"\\u001b[2J"}]}')},
        {"HEAD": MISSING, "POST": BEGUN, "PUT": plain("307 Go", b"", "Location: /x"), "PATCH": BEGUN},
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("200 OK"),
            "PATCH": plain("307 Go", b"", "Location: /x"),
        },
        {"HEAD": MISSING, "POST": BEGUN, "PUT": plain("201 OK"), "PATCH": plain("202 OK")},
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("503 No"),
            "PATCH": plain("503 No"),
            "GET": plain("204 OK", b"", "Range: 0-99999999999999999999"),
        },
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("503 No"),
            "PATCH": plain("503 No"),
            "GET": plain("204 OK", b"", "Range: 0-999999999"),
        },
        {"HEAD": plain("200 OK", b"", "Content-Length: \xb2"), "PUT": plain("500 No", b"\0" * 5000)},
    ],
    ids=str,
)
def test_what_no_registry_should_answer(answers: dict[str, bytes], tmp_path: Path) -> None:
    built = image(tmp_path, "v1", {"a": 1_200_000, "b": 10})
    with answering(answers) as host, pytest.raises(RegistryError) as error:
        push_to(host, "team/app", built, login=Login(user="kim", password="correct-horse"))

    told = error.value.message
    assert host in told
    assert len(told) < 1000
    assert "\x1b" not in told
    assert "correct-horse" not in told
