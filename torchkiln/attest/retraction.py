"""Writes and reads the statement that an image is retracted."""

from __future__ import annotations

from typing import Any

from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.util.schema import sentences

RETRACTION = "urn:torchkiln:retraction:1"
_ANY = "urn:torchkiln:retraction:"  # any version: an unknown version is a retraction, too
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["reason", "when"],
    "properties": {"reason": {"type": "string"}, "when": {"type": "string"}},
}


def retraction(tag: str, image: Digest, *, reason: str, when: str) -> Statement:
    """The statement that *image*, tagged *tag*, must not be used.

    :param when: UTC, "2026-11-22T17:05:16Z".
    :raises ConfigError: *reason* is empty.
    """
    demand_reason(reason)
    return statement(tag, image, RETRACTION, {"reason": reason.strip(), "when": when})


def is_retraction(kind: str) -> bool:
    """Whether *kind* is the predicate type of a retraction, of any version."""
    return kind.startswith(_ANY)


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
    if statement.kind != RETRACTION or (wrong := sentences(statement.content, _SCHEMA, where)):
        message = "\n".join(wrong) if statement.kind == RETRACTION else f"{where}: not a retraction"
        raise VerificationFailed(message)
    return statement.content["reason"], statement.content["when"]
