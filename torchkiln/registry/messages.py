"""Defines a request to a registry, and its response: status, headers, a body of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torchkiln.util.strict_json import json_of

LIMIT = 4 << 20  # bytes of a response: documents and errors, never a blob
_LONGEST = 300  # characters of a registry's error message
#: The hint for an invalid response.
REGISTRY_AT_FAULT = (
    "the registry, or a proxy in front of it, is at fault: check the address, or tell the registry's operator"
)
Scopes = tuple[str, ...]  # ("repository:team/app:pull,push",)


@dataclass(frozen=True, slots=True)
class Body:
    """A body that is sent in pieces, perhaps several times; it has a length, so it is not sent chunked."""

    size: int
    pieces: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()


#: Receives the status and the pieces of a body; with 206 they continue an earlier body.
Taker = Callable[[int, Iterator[bytes]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    method: str
    url: str  # a path on the registry, or an absolute URL that it returned
    what: str  # the name in error messages, "blob sha256:…"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Body | None = None
    scopes: Scopes | None = ()  # scopes of the token; None: send no token, and return a 401
    into: Taker | None = None  # receives the body if the status is 200 or 206, in each attempt
    limit: int = LIMIT  # maximum bytes of the body, if `into` is None
    quick: bool = False  # if `into` is set: use the short time limit of a document

    @property
    def reads(self) -> bool:
        """Whether the request only reads from the registry."""
        return self.method in ("GET", "HEAD")


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    """A response, read to its end. `url` may have a signature in its query: do not print it."""

    url: str = field(repr=False)
    status: int
    headers: Mapping[str, str] = field(hash=False, repr=False)
    body: bytes = field(repr=False)

    def error_text(self) -> str:
        """`HTTP 403, DENIED: access is denied`: the status with the errors in the body."""
        try:
            messages = "; ".join(
                ": ".join(str(part) for part in (error.get("code"), error.get("message")) if part)
                for error in json_of(self.body)["errors"]
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            messages = ""
        return f"HTTP {self.status}" + (f", {messages[:_LONGEST]}" if messages else "")
