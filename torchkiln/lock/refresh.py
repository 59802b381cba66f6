"""Moves locks to the present packages of their base and tools; wheels and archives stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from torchkiln.lock.lock import on_base
from torchkiln.lock.request import System
from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedCell, package_changes


class PresentSystems(Protocol):
    """Locks the present base and tools of a cell: `Systems` with `upgrade`."""

    def of(self, resolution: Resolution, facts: Facts) -> System:
        """The present base, tools and standalone Python of *resolution*."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Refreshed:
    """A lock before and after, and the OS packages that differ: "openssl 3.0.18 → 3.0.19"."""

    before: LockedCell
    after: LockedCell
    changes: tuple[str, ...]


def refresh(locks: Iterable[LockedCell], systems: PresentSystems, facts: Facts) -> Iterator[Refreshed]:
    """Each of *locks* on the present packages of its OS.

    :raises KilnError: a base or tools cannot be made.
    """
    for locked in locks:
        system = systems.of(locked.resolution, facts)
        after = replace(on_base(locked, system.base, system.tools), standalone=system.standalone)
        yield Refreshed(
            before=locked, after=after, changes=package_changes(locked.os_packages, after.os_packages)
        )
