"""Writes and reads the statements that an image was published under certain tags, and that it is retracted.

A registry can move a tag. The signed statement binds the tags to the image's digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchkiln import __version__
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest

PUBLICATION = "urn:torchkiln:publication:1"
RETRACTION = "urn:torchkiln:retraction:1"
_ANY_RETRACTION = "urn:torchkiln:retraction:"  # any version: an unknown version is a retraction, too
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"}
_NAMES: dict[str, Any] = {
    "type": "object",
    "required": ["names"],
    "properties": {"names": {"type": "array", "minItems": 1, "maxItems": 200, "items": _NAME}},
}
_REASON: dict[str, Any] = {
    "type": "object",
    "required": ["reason", "when"],
    "properties": {"reason": {"type": "string"}, "when": {"type": "string"}},
}


def publication(tag: str, image: Digest, names: Iterable[str]) -> Statement:
    """The statement that *image*, tagged *tag*, was published under *names*, which are sorted."""
    predicate = {"tool": __version__, "names": sorted(set(names))}
    return statement(tag, image, PUBLICATION, predicate)


def published_names(statement: Statement, *, where: str) -> frozenset[str]:
    """The names in a statement that `publication` made; *statement* is not trusted.

    :raises VerificationFailed: it is not a publication.
    """
    return frozenset(statement.checked(PUBLICATION, _NAMES, where=where)["names"])


def retraction(tag: str, image: Digest, *, reason: str, when: str) -> Statement:
    """The statement that *image*, tagged *tag*, must not be used.

    :param when: UTC, "2026-11-22T17:05:16Z".
    :raises ConfigError: *reason* is empty.
    """
    demand_reason(reason)
    return statement(tag, image, RETRACTION, {"reason": reason.strip(), "when": when})


def is_retraction(kind: str) -> bool:
    """Whether *kind* is the predicate type of a retraction, of any version."""
    return kind.startswith(_ANY_RETRACTION)


def demand_reason(reason: str) -> None:
    """:raises ConfigError: *reason* is empty."""
    if not reason.strip():
        raise ConfigError(
            "withdraw requires a reason", hint='for example: --reason "cuDNN 9.5 crashes on H200"'
        )


def reason_of(statement: Statement, *, where: str) -> tuple[str, str]:
    """Why and when the image was retracted.

    :raises VerificationFailed: it is not a retraction.
    """
    content = statement.checked(RETRACTION, _REASON, where=where)
    return content["reason"], content["when"]
