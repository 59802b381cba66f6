"""Debian 13's mkfs.erofs: that of Debian 12 reads no tar."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.root import NoEngine, home, made
from tests.needs import give_up
from torchkiln.runtimes import erofs_mount

SUITE, PACKAGES = "trixie", ("erofs-utils",)


def mkfs_in(folder: Path) -> Path:
    """The program mkfs.erofs, in *folder*.

    :raises NoEngine: this host cannot have it.
    """
    root = made(home() / "erofs", SUITE, PACKAGES, "--variant=extract")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(exist_ok=True)
    program = folder / "mkfs.erofs"
    loader = f"{libraries}/ld-linux-x86-64.so.2 --library-path {libraries}"
    program.write_text(f'#!/bin/sh\nexec {loader} {root}/usr/bin/mkfs.erofs "$@"\n')
    program.chmod(0o755)
    return program


def with_mkfs(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put mkfs.erofs on the PATH, as a program in *folder*; skip if this host cannot have it or mount."""
    if reason := erofs_mount.fault():
        give_up(reason)
    try:
        program = mkfs_in(folder)
    except NoEngine as error:
        give_up(str(error))
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return program
