"""Runs programs of linux/arm64 by Debian 13's qemu-user, in namespaces: the machine does not change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.engine.root import NoEngine, home, made
from tests.needs import give_up, namespaces_fault

# ELF files for aarch64; with the flags F: qemu is opened now; P: argv[0] is kept; C: set-user-id works.
_FORMAT = (
    r":aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:%s:FPC"
)
_INSIDE = """set -e
mount -t proc proc /proc
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' "$2" >/proc/sys/fs/binfmt_misc/register
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
exec chroot "$1" /bin/sh -c "$3"
"""
_SECONDS = 900.0


def qemu() -> Path:
    """The program qemu-aarch64; skips the test if this host cannot have it."""
    only = ("--dpkgopt=path-exclude=/usr/bin/qemu-*", "--dpkgopt=path-include=/usr/bin/qemu-aarch64")
    try:
        return (
            made(home() / "qemu", "trixie", ("qemu-user",), "--variant=extract", *only)
            / "usr/bin/qemu-aarch64"
        )
    except NoEngine as error:
        give_up(str(error))


def emulated(root: Path, script: str) -> str:
    """The output of the shell *script* in *root*, a tree of linux/arm64."""
    if reason := namespaces_fault():
        give_up(reason)
    for name in ("dev", "proc"):
        (root / name).mkdir(exist_ok=True)
    words = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    words += ["--propagation=private", "sh", "-c", _INSIDE, "sh", str(root), _FORMAT % qemu(), script]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, env=environ, check=False)
    if "binfmt_misc" in done.stderr and os.geteuid():
        give_up(f"this kernel has no formats of namespaces: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout
