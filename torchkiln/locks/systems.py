"""Locks bases and tools, each once in a run of `lock`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torchkiln.base import archive, artefact, tools
from torchkiln.base.foreign import build_foreign
from torchkiln.base.recipe import recipe
from torchkiln.base.remake import commit_effects, learn
from torchkiln.locks.lock import System, on_base
from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Cell, PythonArchive, Resolution
from torchkiln.model.lock import LockedBase, LockedCell, LockedStandalone, LockedTools, package_changes
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic
from torchkiln.util.places import IMAGES


class Pythons(Protocol):
    """Makes the layers of standalone Pythons."""

    def make(
        self, archive: PythonArchive, python: str, base: LockedBase, report: Reporting
    ) -> LockedStandalone:
        """The layer of *archive*, which has *python* "3.12", over *base*."""
        ...


class Systems:
    """The locked bases in *images*; with *upgrade* they are rebuilt.

    If *images* has no lock of a base, torchkiln's own lock of that base is copied; if torchkiln has none, or
    that base cannot be had, a base is built.

    :param pythons: makes the layers of standalone Pythons.
    """

    def __init__(
        self,
        images: Path,
        store: Store,
        *,
        environ: Mapping[str, str],
        report: Callable[[], AbstractContextManager[Reporting]],
        pythons: Pythons,
        upgrade: bool = False,
    ) -> None:
        self._images, self._store, self._environ, self._report = images, store, environ, report
        self._upgrade, self._pythons = upgrade, pythons
        self._bases: dict[str, LockedBase] = {}
        self._tools: dict[tuple[str, str], LockedTools] = {}

    def builds(self, resolution: Resolution) -> bool:
        """Whether `of` builds the base of *resolution*, which takes minutes."""
        system = resolution.cell.system
        if system in self._bases:
            return False
        return self._upgrade or artefact.read_lock(self._images, system) is None

    def of(self, resolution: Resolution, facts: Facts) -> System:
        """The base, tools, archives and standalone Python of *resolution*."""
        base, toolkit = self._base(resolution.cell), resolution.toolkit
        return System(
            base=base,
            tools=self._tools_on(base, resolution.tools) if resolution.tools else None,
            archives=facts.redist.releases.get(toolkit.release, ()) if toolkit else (),
            standalone=self._standalone_on(base, resolution),
        )

    def _standalone_on(self, base: LockedBase, resolution: Resolution) -> LockedStandalone | None:
        if resolution.standalone is None:
            return None
        with self._report() as report:
            return self._pythons.make(resolution.standalone, resolution.cell.python, base, report)

    def _base(self, cell: Cell) -> LockedBase:
        system = cell.system
        if system not in self._bases:
            base = artefact.read_lock(self._images, system)
            if base is None or self._upgrade:
                own = None if self._upgrade else artefact.read_lock(IMAGES, system)
                base = self._new(cell, base) if own is None else self._own(own)
            self._bases[system] = base
        return self._bases[system]

    def _new(self, cell: Cell, present: LockedBase | None) -> LockedBase:
        """The base of the archive's present packages, locked; of another platform, see `foreign`."""
        if cell.platform != DEFAULT_PLATFORM:
            native = self._base(replace(cell, platform=DEFAULT_PLATFORM))
            learn(self._images, native, self._store)
            with self._report() as report:
                artefact.ensure(native, self._store, locked_only=True, environ=self._environ, report=report)
                platform = PLATFORMS[cell.platform]
                base = build_foreign(native, platform, self._store, environ=self._environ, report=report)
            keep(self._images, base, self._store)
            return base
        wanted = recipe(cell.os)
        with self._report() as report:
            base = artefact.rebuild(wanted, self._store, environ=self._environ, locked=present, report=report)
        keep(self._images, base, self._store)
        return base

    def _own(self, own: LockedBase) -> LockedBase:
        """torchkiln's *own* lock of a base and those of its tools; if the base cannot be had, a new lock."""
        learn(IMAGES, own, self._store)
        with self._report() as report:
            base, changes = artefact.ensure(own, self._store, environ=self._environ, report=report)
        if changes:
            keep(self._images, base, self._store)
            return base
        folder = artefact.lock_path(IMAGES, own.system).parent
        for path in sorted(folder.iterdir()):
            write_atomic(self._images / folder.name / path.name, path.read_bytes())
        return base

    def _tools_on(self, base: LockedBase, name: str) -> LockedTools:
        """The locked tools *name* on *base*; built if they are missing or made for another base."""
        if (base.os, name) not in self._tools:
            found = tools.read_lock(self._images, base.os, name)
            if found is None or found.base != base.digest or self._upgrade:
                learn(self._images, base, self._store)
                with self._report() as report:
                    artefact.ensure(base, self._store, locked_only=True, report=report)
                    found = tools.rebuild(
                        name, base, self._store, environ=self._environ, locked=found, report=report
                    )
                keep(self._images, found, self._store)
            self._tools[base.os, name] = found
        return self._tools[base.os, name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refreshed:
    """A lock before and after, and the OS packages that differ: "openssl 3.0.18 → 3.0.19"."""

    before: LockedCell
    after: LockedCell
    changes: tuple[str, ...]


def refresh(locks: Iterable[LockedCell], systems: Systems, facts: Facts) -> Iterator[Refreshed]:
    """Each of *locks* on the present packages of its OS; wheels and archives stay.

    :param systems: with `upgrade`.
    :raises KilnError: a base or tools cannot be made.
    """
    for locked in locks:
        system = systems.of(locked.resolution, facts)
        after = replace(on_base(locked, system.base, system.tools), standalone=system.standalone)
        changes = package_changes(locked.os_packages, after.os_packages)
        yield Refreshed(before=locked, after=after, changes=changes)


def keep(images: Path, found: LockedBase | LockedTools, store: Store) -> Path:
    """Write the lock of a base or of tools, and what is known about its packages; returns the lock's path."""
    path = artefact.write_lock(images, found)
    archive.commit_files(images, found, store)
    commit_effects(images, found, store)
    return path
