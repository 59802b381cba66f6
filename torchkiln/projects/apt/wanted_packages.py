"""Locks the OS packages of a project, in addition to those of its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.base.remake import APT_EFFECTS, commit_effects
from torchkiln.locks.request import EVERYTHING
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.plan import ImagePlan
from torchkiln.model.progress import Reporting
from torchkiln.model.project import ProjectLock
from torchkiln.projects.apt.os_packages import layers_of, lock_apt, own_paths
from torchkiln.projects.file import save_project
from torchkiln.projects.lock import LockedProject
from torchkiln.store.store import Store


def with_packages(
    found: LockedProject,
    requested: tuple[str, ...],
    kept: LockedApt | None,
    plan: ImagePlan,
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting,
) -> LockedProject:
    """*found* with the OS packages *requested*, locked for the image of *plan*.

    :param kept: the OS packages of the present lock, used if request and layers are the same; None: lock them
        anew.
    :raises KilnError: as `lock_apt` does.
    """
    if not requested:
        return found
    layers, apt = layers_of(plan.locked), kept
    notes: tuple[str, ...] = ()
    if apt is None or apt.requested != requested or not layers.fits(apt):
        layers = _present(layers, store, environ, report)
    if apt is None or apt.requested != requested or not layers.fits(apt):
        apt, notes = lock_apt(requested, layers, own_paths(plan), store, environ=environ, report=report)
    lock = replace(found.lock, apt=apt, untrusted=found.lock.untrusted or apt.untrusted)
    return replace(found, lock=lock, notes=(*found.notes, *notes))


def save_locked(folder: Path, lock: ProjectLock, store: Store) -> Path:
    """Write *lock*, with the effects of its OS packages, into the project's *folder*; returns its path."""
    if lock.apt:
        commit_effects(folder, lock.apt, store)
    else:
        (folder / APT_EFFECTS).unlink(missing_ok=True)
    return save_project(folder, lock)


def kept_packages(apt: LockedApt | None, upgrade: tuple[str, ...]) -> LockedApt | None:
    """*apt*, unless *upgrade* names one of its packages, or everything."""
    names = {deb.name for deb in apt.debs} if apt else set()
    return None if {*upgrade} & {*names, *EVERYTHING} else apt


def _present(layers: OsLayers, store: Store, environ: Mapping[str, str], report: Reporting) -> OsLayers:
    """*layers* with their blobs in *store*; if the locked ones cannot be had, those of the archive today."""
    base, _ = artefact.ensure(layers.base, store, environ=environ, report=report)
    found = layers.tools and tools.ensure(layers.tools, base, store, environ=environ, report=report)[0]
    return OsLayers(base=base, tools=found)
