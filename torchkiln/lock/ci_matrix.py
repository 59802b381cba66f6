"""Writes a job matrix for GitHub Actions: all locked cells, or those that changed since a Git revision."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchkiln.lock.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedCell
from torchkiln.util.strict_json import json_of

Reason = Literal["new", "lock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CiJob:
    """One cell for CI to build. `changed` is None if the locks were not compared with a revision."""

    locked: LockedCell
    changed: Reason | None = None


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
            yield CiJob(locked=locked, changed="new")
        elif then[tag] != lock_digest(locked):
            yield CiJob(locked=locked, changed="lock")


def github_matrix(jobs: Iterable[CiJob]) -> str:
    """One line of JSON for fromJSON in `strategy.matrix`. GitHub rejects an empty matrix: use `if`."""
    return json.dumps({"include": [_row(job) for job in jobs]}, separators=(",", ":"))


def _row(job: CiJob) -> dict[str, Any]:
    """The JSON values of *job*. Keys are never removed or renamed, because workflows use them."""
    resolution, base = job.locked.resolution, job.locked.base
    cell = resolution.cell
    row: dict[str, Any] = {
        "tag": tag_of(resolution),
        "torch": cell.torch,
        "cuda": cell.cuda,
        "flavor": cell.flavor,
        "os": cell.os,
        "lock": lock_digest(job.locked),
        "base": base.digest,
        "status": resolution.status.value,
    }
    return row if job.changed is None else {**row, "changed": job.changed}
