"""Writes and reads in-toto statements, version 1, about an image.

The subject is the digest of the image's manifest. The predicate type is a URL or a URN that names the format
of the predicate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPE = "https://in-toto.io/Statement/v1"
_HINT = "get it again from its source; do not use this one"
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["_type", "subject", "predicateType"],
    "properties": {
        "_type": {"const": TYPE},
        "predicateType": {"type": "string"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["digest"],
                "properties": {
                    "name": {"type": "string"},
                    "digest": {"type": "object", "required": ["sha256"], "properties": {"sha256": _SHA256}},
                },
            },
        },
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A statement about one image. `predicate` is JSON text."""

    name: str  # of the image, for people: its tag; may be empty
    image: Digest
    kind: str  # predicate type
    predicate: str

    @property
    def content(self) -> Any:
        """The predicate as JSON values."""
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
