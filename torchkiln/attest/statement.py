"""Something said of an image ⇄ in-toto's statement, version 1: whose subject is a manifest's digest.

What a statement says is its predicate; which kind of thing that is, its predicate type, an address or a URN.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
TYPE = "https://in-toto.io/Statement/v1"
_HINT = "get it again from where it was made; do not use this one"
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
                    "digest": {
                        "type": "object",
                        "required": ["sha256"],
                        "properties": {"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
                    },
                },
            },
        },
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What somebody says of one image. `predicate` is a JSON text."""

    name: str  # of the image, for people: its tag; may be empty
    image: Digest
    kind: str  # predicate type
    predicate: str

    @property
    def said(self) -> Any:
        """The predicate as plain values."""
        return json.loads(self.predicate)


def statement(name: str, image: Digest, kind: str, said: Any) -> Statement:
    """*said*, plain values, of *image*; the same values give the same text."""
    return Statement(name=name, image=image, kind=kind, predicate=json.dumps(said, separators=(",", ":")))


def payload(told: Statement) -> bytes:
    """The bytes that are signed."""
    document = {
        "_type": TYPE,
        # An empty name too: sigstore's Python library takes no subject without one.
        "subject": [{"name": told.name, "digest": {"sha256": told.image.partition(":")[2]}}],
        "predicateType": told.kind,
        "predicate": told.said,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse(data: bytes, *, where: str) -> Statement:
    """The inverse of `payload`, of bytes that anybody may have written.

    :raises VerificationFailed: they are no statement of one image; names *where*.
    """
    try:
        told = json_of(data)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    if wrong := sentences(told, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    subject = told["subject"][0]
    return Statement(
        name=subject.get("name", ""),
        image=parse_digest(f"sha256:{subject['digest']['sha256']}"),
        kind=told["predicateType"],
        predicate=json.dumps(told.get("predicate"), separators=(",", ":")),
    )
