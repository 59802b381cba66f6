"""Locked cells, what an earlier revision had → the cells that a CI has to do, as GitHub's matrix."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torchkiln.lockfile import lock_digest
from torchkiln.nouns import LockedCell
from torchkiln.recipe import RECIPE
from torchkiln.strict import json_of
from torchkiln.tags import tag_of

Reason = Literal["new", "lock", "recipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What decided an image's bytes at an earlier revision; None where nobody can tell any more."""

    lock: str | None
    recipe: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One cell for a CI to build. `changed` is None where nothing was compared."""

    locked: LockedCell
    changed: Reason | None = None


def known(lock: bytes, plan: bytes | None) -> Known:
    """What lock.json and plan.json told then. An older schema is no error: it tells less."""
    return Known(lock=_field(lock, "digest", str), recipe=_field(plan, "recipe", int))


def changed(locks: Iterable[LockedCell], then: dict[str, Known]) -> Iterator[Job]:
    """Those of *locks* whose images are others than at the revision that had *then*, by tag.

    The lock's digest does not know our own recipe, so a raised one counts too, or it would reach no registry.
    """
    for locked in locks:
        was = then.get(tag_of(locked.resolution))
        if was is None:
            yield Job(locked=locked, changed="new")
        elif was.lock != lock_digest(locked):
            yield Job(locked=locked, changed="lock")
        elif was.recipe != RECIPE:
            yield Job(locked=locked, changed="recipe")


def github_matrix(jobs: Iterable[Job]) -> str:
    """One line of JSON: `strategy.matrix` takes it by fromJSON. An empty one wants an `if` before the job."""
    return json.dumps({"include": [_row(job) for job in jobs]}, separators=(",", ":"))


def _row(job: Job) -> dict[str, Any]:
    """Keys are only ever added; workflows name them."""
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


def _field(data: bytes | None, name: str, kind: type) -> Any:
    try:
        document = json_of(data) if data is not None else None
    except ValueError:
        return None
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, kind) else None
