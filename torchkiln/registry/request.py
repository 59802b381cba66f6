"""Defines a request to a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torchkiln.registry.tokens import Scopes

LIMIT = 4 << 20  # bytes of a response: documents and errors, never a blob


class Body(Protocol):
    """A body that is sent in pieces; it has a length, so that it is not sent chunked."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...


#: Receives the status and the pieces of a body; with 206 they continue an earlier body.
Taker = Callable[[int, Iterator[bytes]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """One request."""

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
