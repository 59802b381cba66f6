"""Detects that the files of a project may have changed, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchkiln.base.remake import APT_EFFECTS
from torchkiln.errors import KilnError
from torchkiln.model.plan import OverlayFile, OverlayLink
from torchkiln.projects import pylock, uv_lock
from torchkiln.projects.code import ProjectCode, code_paths
from torchkiln.projects.file import FILE
from torchkiln.projects.pyproject import FILE as PYPROJECT
from torchkiln.projects.read import REQUIREMENTS
from torchkiln.projects.settings import FILE as SETTINGS

#: By path: values of lstat. At least one changes if the bytes, the type or the mode of the file change.
Snapshot = Mapping[str, tuple[int, ...]]

# These files determine the lock and the settings; they are included even if git ignores them.
_ALSO = (pylock.FILE, uv_lock.FILE, PYPROJECT, REQUIREMENTS, FILE, SETTINGS)


def snapshot(folder: Path, beside: Iterable[Path] = ()) -> Snapshot:
    """The lstat values of the code in *folder*, of its locks and settings, and of the files *beside*.

    Empty if the folder cannot be listed; `read_code` says why.
    """
    try:
        names = {*code_paths(folder, (APT_EFFECTS,)), *_ALSO}
    except (KilnError, OSError):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for path in (*(os.path.join(folder, name) for name in names), *map(str, beside)):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        found[path] = (
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,  # changes even if the modification time is set back
            status.st_ino,
        )
    return found


def changed_paths(before: ProjectCode, after: ProjectCode) -> tuple[str, ...]:
    """The paths that differ, sorted; `+` marks a new path, `-` a removed one."""
    old, new = _by_path(before), _by_path(after)
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return tuple(path if path in old and path in new else f"{'+-'[path in old]}{path}" for path in paths)


def _by_path(code: ProjectCode) -> dict[str, OverlayFile | OverlayLink]:
    entries: tuple[OverlayFile | OverlayLink, ...] = (*code.files, *code.links)
    return {entry.path: entry for entry in entries}
