"""Reads rootfs/, the files that are copied into every image."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.model.plan import OverlayFile


def load(rootfs: Path) -> tuple[OverlayFile, ...]:
    """Every regular file below *rootfs*, by path; modes are 0755 if the owner may execute, else 0644.

    Git stores only that part of a mode, and the umask of a checkout must not change an image.

    :raises ConfigError: the folder is missing, or contains links or special files; lists all of them.
    """
    if not rootfs.is_dir():
        raise ConfigError(
            f"{rootfs}: no such folder", hint="torchkiln runs from its checkout; clone the repository again"
        )
    files: list[OverlayFile] = []
    faults: list[str] = []
    for folder, folders, names in os.walk(rootfs, followlinks=False):
        # Caches of Python, mypy and similar tools.
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__" and not Path(folder, name, "CACHEDIR.TAG").exists()
        ]
        for name in [*names, *(name for name in folders if Path(folder, name).is_symlink())]:
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
        raise ConfigError.of(sorted(faults), hint="replace it by a copy of the file")
    return tuple(sorted(files, key=lambda file: file.path))
