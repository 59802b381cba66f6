"""What a library says about a failed request → the words that curl and pip have for it. Pure."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus

from urllib3 import exceptions

from torchkiln.util.http.deadlines import Overdue

_LONGEST = 120  # characters of somebody else's words


def reason_of(error: BaseException) -> str:
    """Why the request failed, in a phrase: "connection refused", "host name does not resolve" …"""
    causes = list(_causes(error))
    if any(isinstance(one, Overdue) for one in causes):  # the rest follows from our shutting it down
        return "timed out"
    proxy = "proxy: " if any(isinstance(one, exceptions.ProxyError) for one in causes) else ""
    for one in reversed(causes):  # the innermost knows best
        if told := _phrase(one):
            return proxy + told
    return f"{proxy}no connection ({type(causes[-1]).__name__})"


def certificate_fault(error: BaseException) -> str:
    """What TLS has against the server: "certificate verify failed: …", or "TLS handshake failed: …"."""
    return next(
        (told for one in reversed(list(_causes(error))) if (told := _phrase(one))), "TLS handshake failed"
    )


def status_text(status: int) -> str:
    """The status as curl and browsers show it: "HTTP 401 Unauthorized"."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _phrase(error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"certificate verify failed: {_short(error.verify_message or str(error))}"
        case ssl.SSLError():
            return f"TLS handshake failed: {_short(getattr(error, 'reason', None) or str(error))}"
        case exceptions.NameResolutionError() | socket.gaierror():
            return "host name does not resolve"
        case http.client.RemoteDisconnected():
            return "the server closed the connection without an answer"
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset"
        case OSError() if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return "no route to host"
        case exceptions.ConnectTimeoutError():
            return "connection timed out"
        case TimeoutError() | exceptions.ReadTimeoutError():
            return "timed out: the server sends nothing"
        case http.client.IncompleteRead() | exceptions.IncompleteRead():
            return "the connection broke off"
        case http.client.HTTPException():
            return f"not a valid HTTP answer: {_short(str(error) or type(error).__name__)}"
        case exceptions.DecodeError():
            return "the body is not what Content-Encoding says"
        case exceptions.LocationParseError() | exceptions.LocationValueError():
            return "not a valid address"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """*error*, and what it was raised for or carries, outermost first."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        waiting += [other for other in inner if isinstance(other, BaseException)]


def _short(text: str) -> str:
    """Of somebody else's words the first line, and not all of it."""
    return " ".join(text.split())[:_LONGEST]
