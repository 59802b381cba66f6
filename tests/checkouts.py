"""Small git checkouts with locks in them, for tests that read an earlier revision."""

from __future__ import annotations

import os
from pathlib import Path

from tests.planned import locked
from tests.programs import run_program
from torchkiln.locks.lock import save
from torchkiln.model.lock import LockedCell

# git without the user's configuration, hooks and signing.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "test",
    "GIT_AUTHOR_EMAIL": "test@test.invalid",
    "GIT_COMMITTER_NAME": "test",
    "GIT_COMMITTER_EMAIL": "test@test.invalid",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git; returns its output."""
    done = run_program(["git", *arguments], cwd=folder, env={**os.environ, **GIT}, check=True)
    return done.stdout.strip()


def put(images: Path, cell: LockedCell | None = None) -> LockedCell:
    """Write the lock of *cell*, by default an invented one, into *images*; returns the cell."""
    cell = cell or locked()
    save(images, cell)
    return cell


def commit(folder: Path, message: str = "a state") -> str:
    """Commit everything in *folder*; creates the repository if it is missing."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")
