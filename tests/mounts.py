"""Words before a command that give it mounts of its own: a /dev with these nodes, a /run that sshd likes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

# What `docker run` would have put there, or not.
_DEV = """
mkdir "$1"; mount --rbind /dev "$1"; mount -t tmpfs dev /dev; mkdir /dev/shm
for name in null zero random urandom; do touch /dev/$name; mount --bind "$1/$name" /dev/$name; done
for name in $2; do touch "/dev/$name"; done
mount -t tmpfs -o "size=$3" shm /dev/shm
shift 3; exec "$@"
"""
_RUN = 'mount -t tmpfs run /run; mkdir -m 0755 /run/sshd; exec "$@"'
_UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def dev(tmp_path: Path, *nodes: str, shm: str = "1g") -> list[str]:
    """A /dev with these *nodes* and so much shared memory."""
    words = [*_UNSHARE, "sh", "-ec", _DEV, "sh", str(tmp_path / "dev"), " ".join(nodes), shm]
    _try(words)
    (tmp_path / "dev").rmdir()
    return words


def run() -> list[str]:
    """A /run that holds the empty folder sshd, which root's sshd asks for, and nothing else."""
    words = [*_UNSHARE, "sh", "-ec", _RUN, "sh"]
    _try(words)
    return words


def _try(words: Sequence[str]) -> None:
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
