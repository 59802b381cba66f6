"""The commit of torchkiln's checkout, and whether its files differ from that commit."""

from __future__ import annotations

import subprocess

from torchkiln.attest.provenance import SourceRevision
from torchkiln.util.places import ROOT

_TIMEOUT = 20.0  # seconds


def source_of() -> SourceRevision | None:
    """The commit that git reports; None: no git, or no checkout."""
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
