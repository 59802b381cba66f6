"""One run of `lock`: cells, one after the other, each into its folder; what all of them need, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, KilnError, Stale
from torchkiln.index.package_index import open_index
from torchkiln.lock.choice import record_of
from torchkiln.lock.components import lock_beside
from torchkiln.lock.folder import LockFolder
from torchkiln.lock.lock import how_to_lock, load_locked, lock, save
from torchkiln.lock.request import EVERYTHING, Versions
from torchkiln.lock.systems import Systems
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a run is asked for.

    `as_of`: an ISO date, None for today; `upgrade`: packages that may move, see `Versions`; `by_record`: take
    what is only on PyTorch's own index by the hashes on public record, without asking that index.
    """

    as_of: str | None = None
    upgrade: tuple[str, ...] = ()
    upgrade_base: bool = False
    by_record: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked:
    """A cell that was locked. `yanked`: name, version and reason of wheels that their index has withdrawn."""

    tag: str
    previous: LockedCell | None
    lock: LockedCell
    yanked: tuple[tuple[str, str, str], ...]


class Observer(Protocol):
    """Hears of a run."""

    def say(self, line: str) -> None:
        """A sentence about the run."""

    def locked(self, result: Locked) -> None:
        """A cell was locked, and its files are written."""

    def failed(self, tag: str, error: KilnError) -> None:
        """A cell could not be locked, and the run goes on."""


class Session:
    """The indexes and each OS's base are opened once.

    :raises ConfigError: the date that was asked for is not valid, or a setting of an index.
    """

    def __init__(
        self,
        folder: LockFolder,
        request: Request,
        store: Store,
        *,
        environ: Mapping[str, str],
        observer: Observer,
    ) -> None:
        self._folder, self._request, self._observer = folder, request, observer
        self._date = date_of(request.as_of)
        self._index = open_index(environ, store)
        self._systems = Systems(
            folder.path, store, environ=environ, say=observer.say, upgrade=request.upgrade_base
        )
        if left_out := self._index.pages.settings.left_out:
            observer.say(f"not followed, by design: {', '.join(left_out)}")

    def run(self, cells: Sequence[Cell], *, sweeping: bool) -> None:
        """Lock each; in a sweep one failure does not stop the others, and the worst ends the run."""
        failures: list[KilnError] = []
        for cell in cells:
            try:
                self._observer.locked(self.lock(cell))
            except KilnError as error:
                if not sweeping:
                    raise
                self._observer.failed(tag_of(self._folder.resolution(cell)), error)
                failures.append(error)
        if failures:
            worst = max(failures, key=lambda error: error.exit_code)
            raise type(worst)(f"{len(failures)} of {len(cells)} cells could not be locked", hint=worst.hint)

    def lock(self, cell: Cell) -> Locked:
        """Lock *cell* and write its files; what its present lock has, and nothing upgrades, is kept.

        :raises Unresolvable: the cell is unavailable, or its packages cannot be had.
        :raises ConfigError: a package that was to be upgraded is not in the lock.
        """
        resolution = self._folder.resolution(cell)
        tag = tag_of(resolution)
        previous = self._previous(tag)
        found = (self._beside if resolution.components else self._plain)(resolution, previous)
        save(self._folder.path, found)
        versions = ((wheel.name, wheel.version) for wheel in found.wheels)
        yanked = tuple((*one, self._index.yanked[one]) for one in versions if one in self._index.yanked)
        return Locked(tag=tag, previous=previous, lock=found, yanked=yanked)

    def _previous(self, tag: str) -> LockedCell | None:
        """The present lock; one that is broken gives no versions to keep, and is made anew."""
        if not (self._folder.path / tag / "lock.json").exists():
            return None
        try:
            previous = load_locked(self._folder.path, tag)
        except Stale as error:
            self._observer.say(f"{tag}: made anew, no version is kept: {error.message}")
            return None
        known = {*EVERYTHING, *(wheel.name for wheel in previous.wheels)}
        strangers = [name for name in self._request.upgrade if canonicalize_name(name) not in known]
        if strangers and not set(EVERYTHING) & set(self._request.upgrade):
            raise ConfigError(
                f"--upgrade {', '.join(strangers)}: not in the lock of {tag}", hint="see its requirements.txt"
            )
        return previous

    def _versions(self, previous: LockedCell | None, date: str) -> Versions:
        return Versions(as_of=date, previous=previous, upgrade=self._request.upgrade)

    def _plain(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        settings, facts = self._index.pages.settings, self._folder.facts
        record = record_of(
            resolution, facts, by_record=self._request.by_record, pytorch_url=settings.pytorch_url
        )
        return lock(
            resolution,
            self._index,
            self._systems.of(resolution, facts),
            self._versions(previous, self._date),
            bound=self._folder.bound,
            untrusted=settings.untrusted,
            record=record,
        )

    def _beside(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        """On the plain cell's lock, whose day goes on to hold unless another is asked for."""
        below = self._folder.below(resolution.cell)
        plain = load_locked(self._folder.path, tag_of(below), how=how_to_lock(below.cell))
        kept = max(one.as_of for one in (plain, previous) if one)
        asked = self._request.as_of or self._request.upgrade
        return lock_beside(
            resolution,
            self._index,
            plain,
            self._versions(previous, self._date if asked else kept),
            below=below,
            bound=self._folder.bound,
        )


def date_of(as_of: str | None) -> str:
    """*as_of* as an ISO date; today (UTC) where it is None.

    :raises ConfigError: it is no date.
    """
    if as_of is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return datetime.strptime(as_of, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise ConfigError(f"--as-of {as_of}: not a valid date", hint="write it as 2026-11-21") from None
