"""Finds the source of torchkiln: the commit of its checkout, and whether files differ; or the package."""

from __future__ import annotations

import subprocess

from torchkiln import __version__
from torchkiln.attest.provenance import SourcePackage, SourceRevision
from torchkiln.util.places import INSTALLED, ROOT

_TIMEOUT = 20.0  # seconds


def source_of() -> SourceRevision | SourcePackage | None:
    """The installed package, or the commit that git reports; None: a checkout without git."""
    if INSTALLED:  # git would report a repository that contains the environment
        return SourcePackage(version=__version__)
    revision = _git("rev-parse", "--verify", "HEAD")
    if revision is None:
        return None
    return SourceRevision(
        revision=revision.strip(), changed=_git("status", "--porcelain", "--untracked-files=no") != ""
    )


def _git(*argv: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *argv], capture_output=True, text=True, check=True, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
