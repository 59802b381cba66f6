"""Locks the OS packages of a project, in addition to those of its image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchkiln.base import artefact, tools
from torchkiln.base.os_packages import lock_apt
from torchkiln.errors import BuildFailed
from torchkiln.lock.request import EVERYTHING
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.plan import ImagePlan
from torchkiln.model.progress import Reporting
from torchkiln.project.lock import LockedProject
from torchkiln.project.os_layers import layers_of, own_paths
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
    :raises BuildFailed: the image's base is not in *store*, and the archive has other packages by now.
    :raises KilnError: as `lock_apt` does.
    """
    if not requested:
        return found
    layers, apt = layers_of(plan.locked), kept
    notes: tuple[str, ...] = ()
    if apt is None or apt.requested != requested or not layers.fits(apt):
        _demand_layers(layers, store, environ, report)
        apt, notes = lock_apt(requested, layers, own_paths(plan), store, environ=environ, report=report)
    lock = replace(found.lock, apt=apt, untrusted=found.lock.untrusted or apt.untrusted)
    return replace(found, lock=lock, notes=(*found.notes, *notes))


def kept_packages(apt: LockedApt | None, upgrade: tuple[str, ...]) -> LockedApt | None:
    """*apt*, unless *upgrade* names one of its packages, or everything."""
    names = {deb.name for deb in apt.debs} if apt else set()
    return None if {*upgrade} & {*names, *EVERYTHING} else apt


def _demand_layers(layers: OsLayers, store: Store, environ: Mapping[str, str], report: Reporting) -> None:
    """Check that the locked blobs are in *store*, or make them.

    :raises BuildFailed: a blob is missing, and the archive now has other packages than the locked ones.
    """
    try:
        base, os_name = layers.base, layers.base.os
        artefact.ensure(base, store, os_name=os_name, locked_only=True, environ=environ, report=report)
        if layers.tools:
            tools.ensure(layers.tools, base, store, locked_only=True, environ=environ, report=report)
    except BuildFailed as error:
        raise BuildFailed(
            f"OS packages can be locked only on the base in the image's lock: {error.message}",
            hint="import that base from a machine that has it: torchkiln base import FILE; or lock the image"
            " with today's packages: torchkiln lock TAG --upgrade-base",
        ) from error
