"""`torchkiln list --github`: the locked cells as a matrix of GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# How git writes "no commit"; forges tell it as the commit before a branch's first. Everything is new then.
_NO_COMMIT = re.compile(r"0{40}|0{64}")

if TYPE_CHECKING:
    from torchkiln.nouns import Resolution


def matrix_line(resolutions: Sequence[Resolution], images: Path, since: str | None) -> str:
    """Those of *resolutions* that *images* has a lock of; with *since*, those that changed since then.

    :raises ConfigError: git does not know *since*.
    :raises Stale: a lock is broken.
    """
    from torchkiln.fanout import Job, changed, github_matrix
    from torchkiln.lock import load_locked
    from torchkiln.tags import tag_of

    tags = [tag_of(one) for one in resolutions if one.build is not None]
    locks = [load_locked(images, tag) for tag in tags if (images / tag / "lock.json").exists()]
    if since is None:
        return github_matrix(Job(locked=locked) for locked in locks)
    return github_matrix(changed(locks, _then(tags, images, since)))


def _then(tags: Sequence[str], images: Path, since: str) -> dict[str, str | None]:
    from torchkiln.fanout import digest_in
    from torchkiln.revision import open_revision

    if _NO_COMMIT.fullmatch(since):
        return {}
    revision = open_revision(since, images)
    there = revision.names()
    found = {}
    for tag in tags:
        lock = revision.read(f"{tag}/lock.json") if tag in there else None
        if lock is not None:
            found[tag] = digest_in(lock)
    return found
