"""Reads generated files from a git revision without a checkout, and lists the files of a checkout."""

from __future__ import annotations

import os
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
        raise ConfigError(
            f"{folder}: no such directory", hint="name the folder of generated files: --images DIR"
        )
    found = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode == 0:
        return Revision(name=name, commit=found.stdout.decode().strip(), folder=folder)
    inside = _git(folder, "rev-parse", "--git-dir")
    if inside.returncode != 0:
        message = inside.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise ConfigError(f"{folder}: {message}", hint="run the command in a git clone")
    raise ConfigError(
        f"unknown revision {name!r}",
        hint="in a shallow clone, run: git fetch --unshallow; or name another revision",
    )


# A repository's settings may name programs, which git would start; it would also start one to fetch an object
# that is missing in a partial clone. A bare repository may be among the files of a commit.
_NO = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.bareRepository=explicit")
_ENV = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
_SECONDS = 300  # time limit; a pipe may stand where git expects a file


def checkout_files(folder: Path) -> dict[str, bool]:
    """The tracked (True) and untracked (False) files by path below *folder*, without those that git ignores.

    A path that ends with a slash, or that is a folder, is another repository. Tracked files may be missing.
    :raises ConfigError: git refuses the repository.
    :raises ToolMissing: git is not installed.
    """
    listing = ("ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
    listed = _git(folder, *listing, own=False)
    if listed.returncode != 0:
        message = listed.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise ConfigError(f"{folder}: git cannot list its files: {message}", hint="check: git status")
    return {row[2:]: row[0] != "?" for row in map(os.fsdecode, listed.stdout.split(b"\0")) if row}


def in_checkout(folder: Path) -> bool:
    """Whether *folder* is below a folder with `.git`."""
    here = folder.resolve()
    return any((above / ".git").exists() for above in (here, *here.parents))


def _git(folder: Path, *arguments: str, own: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run git in *folder*; it does not start programs that the repository's settings name.

    :param own: False: ignore variables such as GIT_DIR, which git sets in a hook and which may name another
        repository.
    :raises ConfigError: git does not end, or would have to fetch objects.
    """
    env = {name: text for name, text in os.environ.items() if own or not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *_NO, *arguments]
    try:
        found = subprocess.run(command, capture_output=True, check=False, env=env | _ENV, timeout=_SECONDS)
    except FileNotFoundError as error:
        raise ToolMissing("git: command not found", hint="install git: it reads the repository") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{folder}: git did not end", hint="check: git status") from error
    if found.returncode and b"not allowed" in found.stderr:
        raise ConfigError(f"{folder}: a partial clone, which lacks objects", hint="clone it without --filter")
    return found
