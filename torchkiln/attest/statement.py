"""Writes and reads in-toto statements, version 1, about an image.

The subject is the digest of the image's manifest. The predicate type is a URL or a URN that names the format
of the predicate. Two formats are defined here: the image was published under certain tags, and it is
retracted. A registry can move a tag; the signed statement binds the tags to the image's digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln import __version__
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.util.schema import TEXT, list_of, mapping, sentences
from torchkiln.util.strict_json import json_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPE = "https://in-toto.io/Statement/v1"
_HINT = "get it again from its source; do not use this one"
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SUBJECT = mapping({"digest": mapping({"sha256": _SHA256})}, name=TEXT)
_SCHEMA = mapping(
    {"_type": {"const": TYPE}, "subject": list_of(_SUBJECT, minItems=1, maxItems=1), "predicateType": TEXT}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A statement about one image. `predicate` is JSON text."""

    name: str  # of the image, for people: its tag; may be empty
    image: Digest
    kind: str  # predicate type
    predicate: str

    @property
    def content(self) -> Any:
        return json.loads(self.predicate)

    def checked(self, kind: str, schema: Mapping[str, Any], *, where: str, hint: str = "") -> Any:
        """`content`, which is not trusted, if this is a statement of *kind* that matches *schema*.

        :raises VerificationFailed: it is not; the message names *where*.
        """
        if self.kind != kind:
            raise VerificationFailed(f"{where}: predicate type {self.kind[:200]!r}, not {kind}", hint=hint)
        content = self.content
        if wrong := sentences(content, schema, where):
            raise VerificationFailed("\n".join(wrong), hint=hint)
        return content


def statement(name: str, image: Digest, kind: str, predicate: Any) -> Statement:
    """The statement with *predicate*, a JSON value; the same value gives the same text."""
    return Statement(
        name=name, image=image, kind=kind, predicate=json.dumps(predicate, separators=(",", ":"))
    )


def payload(statement: Statement) -> bytes:
    """The bytes that are signed."""
    document = {
        "_type": TYPE,
        # Even if the name is empty: sigstore's Python library requires the key.
        "subject": [{"name": statement.name, "digest": {"sha256": statement.image.partition(":")[2]}}],
        "predicateType": statement.kind,
        "predicate": statement.content,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse(data: bytes, *, where: str) -> Statement:
    """The statement in *data*, which is not trusted; the inverse of `payload`.

    :raises VerificationFailed: *data* is not a statement about one image; the message names *where*.
    """
    try:
        document = json_of(data)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    if wrong := sentences(document, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    subject = document["subject"][0]
    return Statement(
        name=subject.get("name", ""),
        image=parse_digest(f"sha256:{subject['digest']['sha256']}"),
        kind=document["predicateType"],
        predicate=json.dumps(document.get("predicate"), separators=(",", ":")),
    )


PUBLICATION = "urn:torchkiln:publication:1"
RETRACTION = "urn:torchkiln:retraction:1"
_ANY_RETRACTION = "urn:torchkiln:retraction:"  # any version: an unknown version is a retraction, too
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"}
_NAMES = mapping({"names": list_of(_NAME, minItems=1, maxItems=200)})
_REASON = mapping({"reason": TEXT, "when": TEXT})


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
