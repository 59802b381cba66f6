"""What a registry answered: status, headers and a bounded body; and as a sentence, where it is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchkiln.util.strict_json import json_of

_TOLD = 300  # characters of what a registry says that stand in an error


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer, read to its end. `url` may hold a signature in its query: not for messages."""

    url: str = field(repr=False)
    status: int
    headers: Mapping[str, str] = field(hash=False, repr=False)
    body: bytes = field(repr=False)

    def told(self) -> str:
        """`HTTP 403, DENIED: access is denied`: codes and messages in the specification's form."""
        try:
            errors = json_of(self.body)["errors"]
            said = "; ".join(
                ": ".join(str(part) for part in (one.get("code"), one.get("message")) if part)
                for one in errors
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            said = ""
        return f"HTTP {self.status}" + (f", {said[:_TOLD]}" if said else "")
