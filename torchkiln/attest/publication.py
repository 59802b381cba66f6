"""The statement of the tags under which an image was published; writes and reads it.

A registry can move a tag. This statement binds the tags to the image's digest by a signature.
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
    """That *image*, called *tag*, was published under *names*; the same names give the same bytes."""
    predicate = {"tool": __version__, "names": sorted(set(names))}
    return statement(tag, image, PUBLICATION, predicate)


def published_names(statement: Statement, *, where: str) -> frozenset[str]:
    """The names in a statement that `publication` made; *statement* is not trusted.

    :raises VerificationFailed: it is not a publication.
    """
    if statement.kind != PUBLICATION:
        raise VerificationFailed(f"{where}: {statement.kind!r} is not a statement of names")
    if wrong := sentences(statement.content, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong))
    return frozenset(statement.content["names"])
