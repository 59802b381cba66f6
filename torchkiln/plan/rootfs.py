"""rootfs/ -> OverlayFile: the files that go into every image as they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.model.plan import OverlayFile


def load(rootfs: Path) -> tuple[OverlayFile, ...]:
    """Every regular file below *rootfs*, by path; modes are 0755 if the owner may execute, else 0644.

    Git keeps no more of a mode than that, and a checkout's umask must not reach an image.

    :raises ConfigError: the folder is missing, or holds links or special files (all are named).
    """
    if not rootfs.is_dir():
        raise ConfigError(f"{rootfs}: no such folder", hint="torchkiln runs from its checkout; clone it anew")
    files: list[OverlayFile] = []
    faults: list[str] = []
    for folder, folders, names in os.walk(rootfs, followlinks=False):
        # What Python, mypy and their like leave beside programs that they looked at.
        folders[:] = [
            n for n in folders if n != "__pycache__" and not Path(folder, n, "CACHEDIR.TAG").exists()
        ]
        for name in [*names, *(n for n in folders if Path(folder, n).is_symlink())]:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode):
                faults.append(f"{path}: only regular files can go into an image")
                continue
            files.append(
                OverlayFile(
                    path=path.relative_to(rootfs).as_posix(),
                    mode=0o755 if mode & stat.S_IXUSR else 0o644,
                    data=path.read_bytes(),
                )
            )
    if faults:
        raise ConfigError.of(sorted(faults), hint="put a copy in its place")
    return tuple(sorted(files, key=lambda file: file.path))
