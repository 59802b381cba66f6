"""`torchkiln ci matrix`: prints the cells that a CI workflow builds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import CellOptions, own_cell_selection
from torchkiln.cli.shared.terminal import echo
from torchkiln.locks.file import lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedCell
from torchkiln.util.git import open_revision
from torchkiln.util.strict_json import json_of


@click.group("ci", cls=Group)
def ci() -> None:
    """Print what a CI workflow needs."""


@ci.command("matrix")
@own_cell_selection
@click.option(
    "--changed-since",
    "since",
    metavar="GIT_REF",
    help="only cells whose lock or recipe changed since this revision",
)
@images_folder
def matrix(since: str | None, images: Path, chosen: CellOptions) -> None:
    """Print the locked cells as a matrix for GitHub Actions, one line of JSON."""
    cells, grid, facts = chosen.cells()
    echo(matrix_line([resolve(cell, grid, facts) for cell in cells], images, since))


# The first push of a branch has this as the "before" commit in CI events: every lock counts as changed.
_NO_COMMIT = re.compile(r"0{40}|0{64}")


def matrix_line(resolutions: Sequence[Resolution], images: Path, since: str | None) -> str:
    """One line of JSON for fromJSON in `strategy.matrix`: the *resolutions* that have a lock in *images*.

    :param since: a Git revision: only the cells whose lock is new or has another digest than there.

    :raises ConfigError: git does not know *since*.
    :raises Stale: a lock is broken.
    """
    tags = [tag_of(resolution) for resolution in resolutions if resolution.build is not None]
    locks = [load_locked(images, tag) for tag in tags if (images / tag / "lock.json").exists()]
    rows = [_row(locked) for locked in locks]
    if since is not None:
        then = _digests_at(since, tags, images)
        # A new `RECIPE` makes all locks stale. New locks have other digests, so every image is built again.
        changed = [row for row in rows if then.get(row["tag"]) != row["lock"]]
        rows = [{**row, "changed": "lock" if row["tag"] in then else "new"} for row in changed]
    # GitHub rejects an empty matrix: use `if`.
    return json.dumps({"include": rows}, separators=(",", ":"))


def _digests_at(since: str, tags: Sequence[str], images: Path) -> dict[str, str | None]:
    if _NO_COMMIT.fullmatch(since):
        return {}
    revision = open_revision(since, images)
    names = revision.names()
    locks = {tag: revision.read(f"{tag}/lock.json") for tag in tags if tag in names}
    return {tag: _digest_in(lock) for tag, lock in locks.items() if lock is not None}


def _digest_in(lock: bytes) -> str | None:
    """The digest in a lock.json of any schema; None: the file has none."""
    try:
        document = json_of(lock)
    except ValueError:
        return None
    value = document.get("digest") if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


def _row(locked: LockedCell) -> dict[str, Any]:
    """The JSON values of one cell. Keys are never removed or renamed, because workflows use them."""
    resolution, cell = locked.resolution, locked.resolution.cell
    return {
        "tag": tag_of(resolution),
        "torch": cell.torch,
        "cuda": cell.cuda,
        "flavor": cell.flavor,
        "os": cell.os,
        "lock": lock_digest(locked),
        "base": locked.base.digest,
        "status": resolution.status.value,
    }
