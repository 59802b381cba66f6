"""A proxy in front of a registry, which records requests and injects faults.

The proxy forwards the Host header, so that URLs in the registry's responses lead back to the proxy.
With logins, it is also a token server, and rejects requests without a token for their scope.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.servers.answering import QuietHandler
from tests.servers.background import InBackground, QuietHttpServer

Kind = Literal["status", "cut", "unanswered", "slow", "stall", "digest"]
_PIECE = 1 << 14
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


@dataclass
class Fault:
    """A fault of requests that match *method* and *path*: *skip* of them pass, then *times* fail.

    The kinds of faults:

    status      the proxy responds with *status*, and does not forward the request
    cut         the proxy forwards *at* bytes of the body, then closes both connections
    unanswered  the proxy forwards the request, but closes the connection instead of sending the response
    slow        the proxy delays the response
    stall       the proxy reads no body and sends no response until the test ends
    digest      the response has a wrong Docker-Content-Digest
    """

    kind: Kind
    method: str = ""  # a regular expression, like `path`
    path: str = ""
    skip: int = 0
    times: int = 1
    at: int = 0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProxiedRequest:
    """A received request."""

    method: str
    path: str
    body: int  # received bytes of the body
    status: int  # of the response; 0 if the proxy sent none
    range: str = ""  # Content-Range


class FaultProxy(InBackground):
    """A context manager: a proxy in front of the registry at *upstream*.

    :param logins: user → password; empty for no authentication.
    :param basic: use HTTP Basic authentication instead of tokens.
    """

    def __init__(
        self, upstream: str, logins: Mapping[str, str] | None = None, *, basic: bool = False
    ) -> None:
        self.upstream, self.logins, self.basic = upstream, dict(logins or {}), basic
        self.faults: list[Fault] = []
        self.requests: list[ProxiedRequest] = []
        self.tokens: dict[str, frozenset[str]] = {}  # token → scopes, such as "repository:team/app:push"
        self.fetched: list[str] = []  # every issued token
        self.lives = 0  # every n-th accepted request makes its token invalid; 0: none does
        self.token_lifetime = 300
        self._looks = 0
        self.stalled = threading.Event()  # set when a request has the fault `stall`
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._server = QuietHttpServer(("127.0.0.1", 0), _handler(self))

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        super().__exit__(*error)

    @property
    def host(self) -> str:
        """Host and port, such as `127.0.0.1:40124`."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def blob_bytes(self) -> int:
        """The number of bytes received in all requests that upload blobs, also in requests that failed."""
        return sum(request.body for request in self.requests if "/blobs/uploads/" in request.path)

    def counted(self, method: str, path: str = "") -> int:
        """The number of received requests with *method* and a path that matches *path*."""
        return sum(
            bool(request.method == method and re.search(path, request.path)) for request in self.requests
        )

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault to inject into this request, or None; counts the request for `skip` and `times`."""
        with self._guard:
            for fault in self.faults:
                if re.fullmatch(fault.method or ".*", method) and re.search(fault.path, path):
                    if fault.skip:
                        fault.skip -= 1
                    elif fault.times:
                        fault.times -= 1
                        return fault
            return None

    def note(self, request: ProxiedRequest) -> None:
        with self._guard:
            self.requests.append(request)

    # --- tokens -----------------------------------------------------------------------------------

    def expire(self) -> None:
        """Make all issued tokens invalid."""
        with self._guard:
            self.tokens.clear()

    def give_token(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Status and response of the token server."""
        if not self.accepts_login(authorization):
            return 401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong login"}]}
        token, allowed = secrets.token_hex(16), set()
        for scope in parse_qs(urlsplit(path).query).get("scope", []):
            kind, name, actions = scope.split(":")
            allowed |= {f"{kind}:{name}:{action}" for action in actions.split(",")}
        with self._guard:
            self.tokens[token] = frozenset(allowed)
            self.fetched.append(token)
        return 200, {"token": token, "expires_in": self.token_lifetime}

    def accepts_login(self, authorization: str) -> bool:
        """Whether the header *authorization* has a user of *logins* and that user's password."""
        user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return self.logins.get(user) == password

    def allows(self, method: str, path: str, authorization: str) -> bool:
        """Whether the header *authorization* allows the request; a token may expire by this use (`lives`)."""
        if self.basic:
            return self.accepts_login(authorization)
        name = re.match(r"/v2/(.+?)/(?:blobs|manifests)/", path)
        required = set()
        if name:
            required = {f"repository:{name[1]}:{'pull' if method in ('GET', 'HEAD') else 'push'}"}
            if source := parse_qs(urlsplit(path).query).get("from"):
                required.add(f"repository:{source[0]}:pull")
        token = authorization.removeprefix("Bearer ")
        with self._guard:
            if not self.logins:
                return True
            good = token in self.tokens and required <= self.tokens[token]
            self._looks += good
            if good and self.lives and self._looks % self.lives == 0:
                del self.tokens[token]  # the next request with it is rejected
            return good

    def wait(self) -> None:
        """Set `stalled`, and wait until the proxy ends."""
        self.stalled.set()
        self._ended.wait()


def _handler(proxy: FaultProxy) -> type[QuietHandler]:
    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        default_request_version = (
            "HTTP/1.0"  # a client that starts TLS gets a response with a status line, as from real servers
        )
        disable_nagle_algorithm = True
        got = 0

        def handle_any(self) -> None:
            self.got, status = 0, 0
            try:
                status = self.relay()
            finally:
                value = self.headers.get("Content-Range", "")
                proxy.note(ProxiedRequest(self.command, self.path, self.got, status, value))

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def relay(self) -> int:
            fault = proxy.fault(self.command, self.path)
            if fault and fault.kind == "stall":
                proxy.wait()
                return self.hang_up()
            if fault and fault.kind == "status":
                return self.say(fault.status, {}, fault.headers)
            if self.path.startswith("/token"):
                return self.say(*proxy.give_token(self.path, self.headers.get("Authorization", "Basic ")))
            if not proxy.allows(self.command, self.path, self.headers.get("Authorization", "")):
                realm = f'Bearer realm="http://{proxy.host}/token",service="tests",error="invalid_token"'
                realm = 'Basic realm="tests"' if proxy.basic else realm
                wrong = {"errors": [{"code": "UNAUTHORIZED", "message": "token, please"}]}
                return self.say(401, wrong, {"WWW-Authenticate": realm})
            return self.pass_on(fault)

        def pass_on(self, fault: Fault | None) -> int:
            cut = fault.at if fault and fault.kind == "cut" else None
            with _upstream(proxy.upstream) as far:
                far.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP:
                        far.putheader(name, value)
                far.endheaders()
                for piece in self.body(cut):
                    far.send(piece)
                if cut is None and self.got < int(self.headers.get("Content-Length") or 0):
                    return self.hang_up()  # the client has disconnected
                if cut is not None:
                    _end(far)
                    return self.hang_up()
                if fault and fault.kind == "unanswered":
                    far.getresponse().read()
                    return self.hang_up()
                answer = far.getresponse()
                body = answer.read()
            if fault and fault.kind == "slow":
                threading.Event().wait(0.3)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    wrong = fault and fault.kind == "digest" and name.lower() == "docker-content-digest"
                    self.send_header(name, f"sha256:{'f' * 64}" if wrong else value)
            self.end_headers()
            self.wfile.write(body)
            return int(answer.status)

        def body(self, most: int | None = None) -> Iterator[bytes]:
            left = int(self.headers.get("Content-Length") or 0)
            left = left if most is None else min(left, most)
            while left and (piece := self.rfile.read(min(left, _PIECE))):
                self.got += len(piece)
                left -= len(piece)
                yield piece

        def say(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> int:
            """Send a response of the proxy itself, without reading the request's body, as real servers do."""
            data = json.dumps(value).encode()
            end = {"Connection": "close"} if int(self.headers.get("Content-Length") or 0) else {}
            self.answer(status, {**(headers or {}), **end}, data)
            return status

        def hang_up(self) -> int:
            """Close the connection with RST (SO_LINGER 0)."""
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
            return 0

    return Handler


def _end(far: http.client.HTTPConnection) -> None:
    """Wait until the registry has processed all sent bytes, so that a retry finds all of them there."""
    far.sock.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        while far.sock.recv(_PIECE):
            pass


@contextmanager
def _upstream(host: str) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(host, timeout=300)
    try:
        yield connection
    finally:
        connection.close()
