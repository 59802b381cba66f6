"""Defines a registry's HTTP response: status, headers, a body of limited size, and the text of an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchkiln.util.strict_json import json_of

_LONGEST = 300  # characters of a registry's error message

#: The hint for an invalid response.
REGISTRY_AT_FAULT = (
    "the registry, or a proxy in front of it, is at fault: check the address, or tell the registry's operator"
)


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
