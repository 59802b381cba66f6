"""What `lock` is given beside a resolution and an index."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.utils import canonicalize_name

from torchkiln.model.index import KnownWheel
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedTools

EVERYTHING = ("*",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """Which versions a lock may take.

    `as_of` is an ISO date: what was uploaded on that day or later (UTC) does not take part. `previous` is the
    present lock, whose versions are kept; `upgrade` names the packages that need not keep them, `EVERYTHING`
    all.
    """

    as_of: str
    previous: LockedCell | None = None
    upgrade: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, str]:
        """The version of each package that stays."""
        if self.previous is None or set(EVERYTHING) & set(self.upgrade):
            return {}
        moving = {canonicalize_name(name) for name in self.upgrade}
        return {wheel.name: wheel.version for wheel in self.previous.wheels if wheel.name not in moving}


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """What an image has beside wheels. `tools` are on `base`; `archives` of the toolkit's whole release."""

    base: LockedBase
    tools: LockedTools | None = None
    archives: tuple[LockedArchive, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicRecord:
    """What is on public record of the cell's wheels: see `matrix/public_record.py`.

    `torch` is the hex sha256 of torch's wheel; `given` are wheels that no index is asked for: all that the
    cell takes from PyTorch's own.
    """

    torch: str | None = None
    known: tuple[KnownWheel, ...] = ()


NO_RECORD = PublicRecord()
