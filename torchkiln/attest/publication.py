"""Writes and reads the statement that an image was published under certain tags.

A registry can move a tag. The signed statement binds the tags to the image's digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchkiln import __version__
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.util.schema import sentences

PUBLICATION = "urn:torchkiln:publication:1"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["names"],
    "properties": {
        "names": {
            "type": "array",
            "minItems": 1,
            "maxItems": 200,
            "items": {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"},
        }
    },
}


def publication(tag: str, image: Digest, names: Iterable[str]) -> Statement:
    """The statement that *image*, tagged *tag*, was published under *names*, which are sorted."""
    predicate = {"tool": __version__, "names": sorted(set(names))}
    return statement(tag, image, PUBLICATION, predicate)


def published_names(statement: Statement, *, where: str) -> frozenset[str]:
    """The names in a statement that `publication` made; *statement* is not trusted.

    :raises VerificationFailed: it is not a publication.
    """
    if statement.kind != PUBLICATION:
        raise VerificationFailed(f"{where}: predicate type {statement.kind!r}, not {PUBLICATION}")
    if wrong := sentences(statement.content, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong))
    return frozenset(statement.content["names"])
