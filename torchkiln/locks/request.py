"""Defines the inputs of `lock`, without the resolution and the index."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from torchkiln.model.index import KnownWheel
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedStandalone, LockedTools
from torchkiln.model.project import ProjectLock

EVERYTHING = ("*",)


def kept_versions(previous: LockedCell | ProjectLock | None, upgrade: Collection[str]) -> dict[str, str]:
    """The version of each package of a *previous* lock that is not in *upgrade*."""
    if previous is None or set(EVERYTHING) & set(upgrade):
        return {}
    moving = {canonicalize_name(name) for name in upgrade}
    return {wheel.name: wheel.version for wheel in previous.wheels if wheel.name not in moving}


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The versions that a lock may use.

    `as_of` is an ISO date: files uploaded on that day or later (UTC) are ignored. `previous` is the present
    lock, whose versions are kept except those of packages in `upgrade`, which may be `EVERYTHING`.
    """

    as_of: str
    previous: LockedCell | None = None
    upgrade: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, str]:
        """The version of each package that is not upgraded."""
        return kept_versions(self.previous, self.upgrade)


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The parts of an image besides wheels. `archives` are those of the whole toolkit release."""

    base: LockedBase
    tools: LockedTools | None = None
    archives: tuple[LockedArchive, ...] = ()
    standalone: LockedStandalone | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicRecord:
    """The public record of the cell's wheels: see `matrix/public_record.py`.

    `torch` is the hex sha256 of torch's wheel; `known` are the wheels of PyTorch's own index, to be locked
    without querying it.
    """

    torch: str | None = None
    known: tuple[KnownWheel, ...] = ()


NO_RECORD = PublicRecord()
