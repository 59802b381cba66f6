"""Describes failed requests in the words of curl and pip. Pure."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from urllib3 import exceptions

from torchkiln.util.http.session import Overdue

_MAX_TEXT = 120  # characters of a library's message


def reason_of(error: BaseException) -> str:
    """Why the request failed, in a phrase: "connection refused", "host name does not resolve" …"""
    causes = list(_causes(error))
    if overdue := next((cause for cause in causes if isinstance(cause, Overdue)), None):
        return str(overdue)  # the time limit caused all other errors
    proxy = "proxy: " if any(isinstance(cause, exceptions.ProxyError) for cause in causes) else ""
    return proxy + (_innermost(causes) or f"no connection ({type(causes[-1]).__name__})")


def certificate_fault(error: BaseException) -> str:
    """The TLS error: "certificate verify failed: …", or "TLS handshake failed: …"."""
    return _innermost(list(_causes(error))) or "TLS handshake failed"


def _innermost(causes: Sequence[BaseException]) -> str:
    """The phrase of the innermost cause that has one, because that is the most specific."""
    return next(filter(None, map(_phrase, reversed(causes))), "")


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
            return "the server closed the connection without a response"
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError():
            return "connection reset by peer"
        case OSError() if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return "no route to host"
        case exceptions.ConnectTimeoutError():
            return "connection timed out"
        case TimeoutError() | exceptions.ReadTimeoutError():
            return "timed out: the server sends nothing"
        case http.client.IncompleteRead() | exceptions.IncompleteRead():
            return "connection closed before the end of the body"
        case http.client.HTTPException():
            return f"not a valid HTTP response: {_short(str(error) or type(error).__name__)}"
        case exceptions.DecodeError():
            return "the body does not match its Content-Encoding"
        case exceptions.LocationParseError() | exceptions.LocationValueError():
            return "invalid URL"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """*error* and all its causes, outermost first."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        cause = pending.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        inner = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        pending += [other for other in inner if isinstance(other, BaseException)]


def _short(text: str) -> str:
    return " ".join(text.split())[:_MAX_TEXT]
