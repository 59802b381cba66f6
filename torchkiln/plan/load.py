"""Plans a cell from its committed lock: reads images/<tag>/ and rootfs/, then calls `plan`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from torchkiln.errors import ConfigError
from torchkiln.locks.file import lock_digest
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_of
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, OverlayFile
from torchkiln.plan.plan import plan
from torchkiln.util.places import ROOTFS, how_to_restore
from torchkiln.util.strict_json import read_with_mode

# tar, COPY of a Dockerfile and a shell read these names in the same way.
_NAME = re.compile(r"[A-Za-z0-9._+@][A-Za-z0-9._+@-]*")
_DELETION = ".wh."  # prefix of whiteouts, which delete files of the layers below


def plan_cell(cell: Cell, matrix: Matrix, facts: Facts, *, images: Path) -> ImagePlan:
    """The plan of *cell* from its lock in *images*.

    :raises Unresolvable: the cell is unavailable.
    :raises Stale: its lock is missing or invalid.
    :raises ConfigError: rootfs/ is invalid.
    """
    return plan_locked(LockFolder(images, matrix, facts).load(cell), matrix, facts)


def plan_locked(locked: LockedCell, matrix: Matrix, facts: Facts, *, rootfs: Path = ROOTFS) -> ImagePlan:
    """The plan of *locked* with the files of *rootfs*, and of rootfs/ beside the file of *matrix*.

    :raises ConfigError: one of these files is not allowed.
    """
    project = matrix.folder / "rootfs" if matrix.folder else None
    return plan(
        locked,
        load(rootfs, project),
        aliases=aliases_of(locked.resolution, matrix, facts),
        lock_digest=lock_digest(locked),
    )


def load(rootfs: Path, project: Path | None = None) -> tuple[OverlayFile, ...]:
    """Every regular file below *rootfs*, sorted by path; modes are 0755 if the owner may execute, else 0644.

    The other bits depend on the umask of a checkout, which must not change an image: git does not store them.

    :param project: a folder whose files are added, and replace those of the same path; it need not exist.
    :raises ConfigError: *rootfs* is missing, *project* is a link, or one of the two contains links, special
        files or names that are not allowed; the message lists all of them.
    """
    if not rootfs.is_dir():
        raise ConfigError(f"{rootfs}: no such directory", hint=how_to_restore("rootfs"))
    faults: list[str] = []
    files = _read(rootfs, faults)
    if project is not None and project.is_symlink():
        raise ConfigError(f"{project}: a symbolic link", hint="replace it with a folder")
    if project is not None and project.is_dir() and not project.samefile(rootfs):
        added = _read(project, faults)
        faults += [f"{project / path}: {fault}" for path in added if (fault := _fault(path))]
        files |= added
        faults += [f"{project / path}: a file, but also a folder" for path in _files_and_folders(files)]
    if faults:
        raise ConfigError.of(sorted(faults), hint="replace it with a regular file, or rename it")
    return tuple(files[path] for path in sorted(files))


def _read(folder: Path, faults: list[str]) -> dict[str, OverlayFile]:
    """The files below *folder* by path; adds a line to *faults* for everything else."""
    files: dict[str, OverlayFile] = {}
    for above, folders, names in os.walk(folder, followlinks=False):
        # Skips the caches of Python, mypy and similar tools.
        caches = {name for name in folders if Path(above, name, "CACHEDIR.TAG").exists()} | {"__pycache__"}
        folders[:] = [name for name in folders if name not in caches]
        for name in [*names, *(name for name in folders if Path(above, name).is_symlink())]:
            path = Path(above, name)
            try:
                data, mode = read_with_mode(path, 1 << 30, follow=False)
            except OSError as error:
                faults.append(f"{path}: only regular files can go into an image: {error.strerror}")
                continue
            place = path.relative_to(folder).as_posix()
            files[place] = OverlayFile(path=place, mode=0o755 if mode & stat.S_IXUSR else 0o644, data=data)
    return files


def _fault(path: str) -> str:
    """Why *path* cannot be in a project's rootfs/; empty if it can."""
    for part in PurePosixPath(path).parts:
        if part.startswith(_DELETION):
            return f"a name that begins with {_DELETION} deletes files of an image"
        if not _NAME.fullmatch(part):
            return "a name may have only letters, digits and ._+@-, and not begin with -"
    return ""


def _files_and_folders(paths: Iterable[str]) -> list[str]:
    """The *paths* that are also a folder of another path."""
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    return sorted(folders.intersection(paths))
