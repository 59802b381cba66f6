"""`torchkiln ci matrix`: prints the cells that a CI workflow builds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.lock.ci_matrix import changed, digest_in, github_matrix
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.util.git import open_revision


@click.group("ci", cls=Group)
def ci() -> None:
    """Print what a CI workflow needs."""


@ci.command("matrix")
@cell_selection
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
    click.echo(matrix_line([resolve(cell, grid, facts) for cell in cells], images, since))


# The first push of a branch has this as the "before" commit in CI events: every lock counts as changed.
_NO_COMMIT = re.compile(r"0{40}|0{64}")


def matrix_line(resolutions: Sequence[Resolution], images: Path, since: str | None) -> str:
    """A matrix of the *resolutions* that have a lock in *images*; *since*: only those whose lock changed.

    :raises ConfigError: git does not know *since*.
    :raises Stale: a lock is broken.
    """
    tags = [tag_of(resolution) for resolution in resolutions if resolution.build is not None]
    locks = [load_locked(images, tag) for tag in tags if (images / tag / "lock.json").exists()]
    if since is None:
        return github_matrix((locked, None) for locked in locks)
    return github_matrix(changed(locks, _digests_at(since, tags, images)))


def _digests_at(since: str, tags: Sequence[str], images: Path) -> dict[str, str | None]:
    """The digest of each lock at the revision *since*."""
    if _NO_COMMIT.fullmatch(since):
        return {}
    revision = open_revision(since, images)
    names = revision.names()
    locks = {tag: revision.read(f"{tag}/lock.json") for tag in tags if tag in names}
    return {tag: digest_in(lock) for tag, lock in locks.items() if lock is not None}
