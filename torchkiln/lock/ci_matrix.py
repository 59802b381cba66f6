"""Writes a job matrix for GitHub Actions: all locked cells, or those that changed since a Git revision."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from torchkiln.lock.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedCell
from torchkiln.util.strict_json import json_of

#: One cell for CI to build, and why; None: the locks were not compared with a revision.
CiJob = tuple[LockedCell, Literal["new", "lock"] | None]


def digest_in(lock: bytes) -> str | None:
    """The digest in a lock.json of any schema; None: the file has none."""
    try:
        document = json_of(lock)
    except ValueError:
        return None
    value = document.get("digest") if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


def changed(locks: Iterable[LockedCell], then: Mapping[str, str | None]) -> Iterator[CiJob]:
    """The *locks* whose digest differs from *then*, which has the digests of a Git revision by tag.

    A new `RECIPE` makes all locks stale. New locks have other digests, so every image is built again.
    """
    for locked in locks:
        tag = tag_of(locked.resolution)
        if tag not in then:
            yield locked, "new"
        elif then[tag] != lock_digest(locked):
            yield locked, "lock"


def github_matrix(jobs: Iterable[CiJob]) -> str:
    """One line of JSON for fromJSON in `strategy.matrix`. GitHub rejects an empty matrix: use `if`."""
    return json.dumps({"include": [_row(job) for job in jobs]}, separators=(",", ":"))


def _row(job: CiJob) -> dict[str, Any]:
    """The JSON values of *job*. Keys are never removed or renamed, because workflows use them."""
    locked, changed = job
    resolution, base, cell = locked.resolution, locked.base, locked.resolution.cell
    row: dict[str, Any] = {
        "tag": tag_of(resolution),
        "torch": cell.torch,
        "cuda": cell.cuda,
        "flavor": cell.flavor,
        "os": cell.os,
        "lock": lock_digest(locked),
        "base": base.digest,
        "status": resolution.status.value,
    }
    return row if changed is None else {**row, "changed": changed}
