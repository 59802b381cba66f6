"""What a registry is asked, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torchkiln.registry.tokens import Scopes

LIMIT = 4 << 20  # bytes of an answer: documents and errors, never a blob


class Body(Protocol):
    """What is sent, a piece at a time; it has a length, so that no server gets it in chunks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...


#: Takes the body of an answer a piece at a time, with its status: 206 goes on where an earlier one was cut.
Taker = Callable[[int, Iterator[bytes]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """One request, whoever sends it and however often."""

    method: str
    url: str  # a path on the registry, or the whole address that it gave
    what: str  # for errors, "blob sha256:…"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Body | None = None
    scopes: Scopes | None = ()  # what a token must allow; None: a 401 is an answer like others
    into: Taker | None = None  # takes the body where the status is 200 or 206; called again after a cut
    limit: int = LIMIT  # bytes of an answer that is not taken so
    quick: bool = False  # what is taken is small, and has a document's time

    @property
    def reads(self) -> bool:
        """Whether it changes nothing there."""
        return self.method in ("GET", "HEAD")
