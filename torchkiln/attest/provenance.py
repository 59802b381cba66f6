"""Writes and reads the SLSA provenance, version 1, of an image: its lock, torchkiln's source and the builder.

It is reproducible: the same lock and source give the same statement. It contains the whole lock, so that the
image can be rebuilt without the folder of locks.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln import __version__
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import VerificationFailed
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import RECIPE
from torchkiln.util.schema import TEXT, list_of, mapping

PROVENANCE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:torchkiln:build:1"
_LOCK = "lock.json"
_PURL = "pkg:pypi/torchkiln@"
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!]{0,39}")
_DEPENDENCY = mapping({}, name=TEXT, content=TEXT)
_DEFINITION = {
    "buildType": {"const": BUILD_TYPE},
    "internalParameters": mapping({"recipe": {"type": "integer"}}),
    "resolvedDependencies": list_of(_DEPENDENCY),
}
_SCHEMA = mapping({"buildDefinition": mapping(_DEFINITION), "runDetails": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRevision:
    """The commit of torchkiln's checkout, and whether its files differ from that commit."""

    revision: str  # hex
    changed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePackage:
    """The installed package torchkiln that built the image, if it does not run from a checkout."""

    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The part of a provenance that is needed to rebuild an image."""

    locked: LockedCell
    recipe: int
    source: str  # the revision, or "torchkiln 0.1.0" of an installed package; empty: unknown
    builder: str

    @property
    def short_source(self) -> str:
        """The source; a revision is shortened to twelve digits."""
        return self.source if " " in self.source else self.source[:12]


def provenance(
    locked: LockedCell, image: Digest, *, source: SourceRevision | SourcePackage | None, builder: str
) -> Statement:
    """The provenance of *image*, which was built from *locked*.

    :param source: None if it is unknown: a checkout without git.
    :param builder: a URL or a URN.
    """
    cell, lock = locked.resolution.cell, to_json(locked)
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "torch": cell.torch,
                "cuda": cell.cuda,
                "flavor": cell.flavor,
                "os": cell.os,
            },
            "internalParameters": {
                "recipe": RECIPE,
                "lock": lock_digest(locked),
                "epoch": locked.epoch,
                "as_of": locked.as_of,
            },
            "resolvedDependencies": [
                {
                    "name": _LOCK,
                    "mediaType": "application/json",
                    "digest": {"sha256": hashlib.sha256(lock).hexdigest()},
                    "content": base64.b64encode(lock).decode(),
                },
                *_source(source),
                {"name": f"base {locked.base.os}", "digest": _sha256(locked.base.digest)},
                *(
                    [{"name": f"tools {locked.tools.name}", "digest": _sha256(locked.tools.digest)}]
                    if locked.tools
                    else []
                ),
                *(
                    [{"name": standalone.filename, "digest": {"sha256": standalone.sha256}}]
                    if (standalone := locked.standalone)
                    else []
                ),
                *(
                    {
                        "name": wheel.filename,
                        "uri": f"pkg:pypi/{wheel.name}@{wheel.version}",
                        "digest": {"sha256": wheel.sha256},
                    }
                    for wheel in locked.wheels
                ),
                *(
                    {
                        "name": archive.filename,
                        "uri": f"pkg:generic/nvidia/{archive.component}@{archive.version}",
                        "digest": {"sha256": archive.sha256},
                    }
                    for archive in locked.archives
                ),
            ],
        },
        "runDetails": {"builder": {"id": builder, "version": {"torchkiln": __version__}}},
    }
    return statement(tag_of(locked.resolution), image, PROVENANCE, predicate)


def origin(statement: Statement, *, where: str) -> Origin:
    """The content of *statement*, which is not trusted; the inverse of `provenance`.

    :raises VerificationFailed: it is not a provenance of torchkiln, or its lock is damaged.
    :raises Stale: the format of its lock is not supported.
    """
    hint = "the provenance is damaged, or another tool made it"
    content = statement.checked(PROVENANCE, _SCHEMA, where=where, hint=hint)
    definition, details = content["buildDefinition"], content["runDetails"]
    named = {item.get("name"): item for item in definition["resolvedDependencies"]}
    try:
        lock = base64.b64decode(named[_LOCK]["content"], validate=True)
        if hashlib.sha256(lock).hexdigest() != named[_LOCK]["digest"]["sha256"]:
            raise VerificationFailed(f"{where}: checksum mismatch of the embedded lock", hint=hint)
        builder = str(details["builder"]["id"])
    except (LookupError, TypeError, ValueError):
        raise VerificationFailed(f"{where}: no lock, or no builder", hint=hint) from None
    source = named.get("source", {})
    return Origin(
        locked=from_json(lock, where=f"{where}: {_LOCK}"),
        recipe=definition["internalParameters"]["recipe"],
        source=_source_name(source),
        builder=builder,
    )


def _source_name(source: Mapping[str, Any]) -> str:
    digest = source.get("digest", {})
    if isinstance(digest, dict) and "gitCommit" in digest:
        return str(digest["gitCommit"])
    version = str(source.get("uri", "")).removeprefix(_PURL)
    return f"torchkiln {version}" if _VERSION.fullmatch(version) else ""


def _source(source: SourceRevision | SourcePackage | None) -> list[dict[str, Any]]:
    if source is None:
        return []
    if isinstance(source, SourcePackage):
        return [{"name": "source", "uri": f"{_PURL}{source.version}"}]
    changed = {"annotations": {"changed": True}} if source.changed else {}
    return [{"name": "source", "digest": {"gitCommit": source.revision}, **changed}]


def _sha256(digest: Digest) -> dict[str, str]:
    return {"sha256": digest.partition(":")[2]}
