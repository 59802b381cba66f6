"""Parses WWW-Authenticate headers (RFC 9110, 11.6.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

_MOST = 16  # challenges
_LONGEST = 16 << 10  # characters
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SCHEME = re.compile(rf"[\s,]*(?P<scheme>{_TOKEN})(?=\s|,|$)")
_PARAMETER = re.compile(
    rf'[\s,]*(?P<name>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_TOKEN}))'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An authentication scheme with its parameters. `scheme` and the parameters' names are lower-case."""

    scheme: str  # "basic", "bearer"
    parameters: dict[str, str] = field(hash=False)


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges in *header*, in order, up to the first that is malformed or beyond the limit."""
    return list(islice(_challenges(header[:_LONGEST]), _MOST))


def _challenges(header: str) -> Iterator[Challenge]:
    at = 0
    while found := _SCHEME.match(header, at):
        at, parameters = found.end(), {}
        while parameter := _PARAMETER.match(header, at):
            quoted = parameter["quoted"]
            value = parameter["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters[parameter["name"].lower()] = value
            at = parameter.end()
        yield Challenge(scheme=found["scheme"].lower(), parameters=parameters)
