"""Reads generated files from a git revision without a checkout."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ConfigError, ToolMissing


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """A folder of a checkout as it was at a commit."""

    name: str  # as the user wrote it: origin/main
    commit: str
    folder: Path

    def names(self) -> frozenset[str]:
        """The names in the folder at that commit; empty if it did not exist."""
        listed = _git(self.folder, "ls-tree", "-z", "--name-only", self.commit, "./").stdout
        return frozenset(name.decode() for name in listed.split(b"\0") if name)

    def read(self, path: str) -> bytes | None:
        """The file at *path* below the folder; None: it did not exist."""
        shown = _git(self.folder, "show", f"{self.commit}:./{path}")
        return shown.stdout if shown.returncode == 0 else None


def open_revision(name: str, folder: Path) -> Revision:
    """*folder*, in a checkout, at the revision *name*.

    :raises ConfigError: the commit does not exist, or the folder is not in a checkout.
    :raises ToolMissing: git is not installed.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", hint="--images names the folder of generated files")
    found = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode == 0:
        return Revision(name=name, commit=found.stdout.decode().strip(), folder=folder)
    inside = _git(folder, "rev-parse", "--git-dir")
    if inside.returncode != 0:
        message = inside.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise ConfigError(f"{folder}: {message}", hint="run in a clone with its .git")
    raise ConfigError(
        f"unknown revision {name!r}",
        hint="in a shallow clone, run: git fetch --unshallow; or name another revision",
    )


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ToolMissing("git: command not found", hint="install git: it reads the revision") from error
