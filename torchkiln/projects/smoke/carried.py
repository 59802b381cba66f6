"""The project of a bundle: what its checks need to know, without its code, which the image has."""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import VerificationFailed
from torchkiln.locks.lock import load_locked
from torchkiln.oci.image import canonical_json
from torchkiln.projects.asked import ProjectNeeds
from torchkiln.projects.file import FILE, load_project, to_json
from torchkiln.projects.settings import ProjectSettings
from torchkiln.projects.source import LockedFolder
from torchkiln.smoke.bundle.contents import PROJECT
from torchkiln.util import codec
from torchkiln.util.strict_json import json_of, read_file

_READ = "read-by-torchkiln.json"
_LIMIT = 64 << 20


def carried(project: LockedFolder) -> dict[str, bytes]:
    """The files of a bundle, by path, from which `carried_in` has *project*."""
    read = {"needs": codec.plain(project.needs), "settings": codec.plain(project.settings)}
    return {f"{PROJECT}/{FILE}": to_json(project.lock), f"{PROJECT}/{_READ}": canonical_json(read)}


def carried_in(folder: Path, images: Path) -> LockedFolder | None:
    """The project of the bundle that has *folder*; None: *folder* is that of a project, not of a bundle.

    :param images: the folder with the lock of the parent image.
    :raises VerificationFailed: the bundle is damaged.
    :raises Stale: a lock is invalid.
    """
    place = folder / _READ
    if not place.exists() or (lock := load_project(folder)) is None:
        return None
    try:
        read = json_of(read_file(place, _LIMIT, follow=False))
        needs, settings = (
            codec.typed(ProjectNeeds, read["needs"]),
            codec.typed(ProjectSettings, read["settings"]),
        )
    except (ValueError, OSError, LookupError, TypeError) as error:
        raise VerificationFailed(f"{place}: {error}", hint="copy the bundle here again") from error
    cell = load_locked(images, lock.parent)
    return LockedFolder(folder=folder, cell=cell, lock=lock, needs=needs, settings=settings)
