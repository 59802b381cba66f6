"""Runs `lock` for several cells, and shares indexes and bases between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, KilnError, Stale
from torchkiln.index.package_index import open_index
from torchkiln.locks.choice import record_of
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import EVERYTHING, Versions, load_locked, lock, save
from torchkiln.locks.systems import Pythons, Systems
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LockRequest:
    """The options of a run.

    `as_of`: an ISO date, None for today; `upgrade`: packages to upgrade, see `Versions`; `by_record`: use
    publicly recorded hashes instead of PyTorch's own index (`--public-record`).
    """

    as_of: str | None = None
    upgrade: tuple[str, ...] = ()
    upgrade_base: bool = False
    by_record: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LockResult:
    """The result for one cell. `yanked`: name, version and reason of yanked wheels."""

    tag: str
    previous: LockedCell | None
    lock: LockedCell
    yanked: tuple[tuple[str, str, str], ...]


class LockObserver(Protocol):
    """Receives the results of a run."""

    def say(self, line: str) -> None:
        """A line of diagnostics."""

    def reporting(self) -> AbstractContextManager[Reporting]:
        """A context in which the progress of building a base or tools is reported."""

    def locked(self, result: LockResult) -> None:
        """A cell was locked, and its files are written."""

    def failed(self, tag: str, error: KilnError) -> None:
        """A cell could not be locked; the run continues."""


class LockSession:
    """A run of `lock`, which opens the indexes and each OS's base once.

    :raises ConfigError: the date or a setting of an index is invalid.
    """

    def __init__(
        self,
        folder: LockFolder,
        request: LockRequest,
        store: Store,
        *,
        environ: Mapping[str, str],
        observer: LockObserver,
        pythons: Pythons,
    ) -> None:
        self._folder, self._request, self._observer = folder, request, observer
        self._date = date_of(request.as_of)
        self._locked: set[str] = set()  # tags
        self._index = open_index(environ, store)
        self._systems = Systems(
            folder.path,
            store,
            environ=environ,
            report=observer.reporting,
            pythons=pythons,
            upgrade=request.upgrade_base,
        )
        if left_out := self._index.pages.settings.left_out:
            observer.say(f"ignored settings: {', '.join(left_out)}")

    def run(self, cells: Sequence[Cell], *, sweeping: bool) -> None:
        """Lock *cells*.

        :param sweeping: continue after a failure; at the end, raise the failure with the highest exit code.
        """
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

    def lock(self, cell: Cell) -> LockResult:
        """Lock *cell* and write its files; versions of the present lock are kept unless upgraded.

        :raises Unresolvable: the cell is unavailable, or its requirements conflict.
        :raises ConfigError: a package to upgrade is not in the lock, or only thin cells are upgraded.
        """
        resolution = self._folder.resolution(cell)
        tag = tag_of(resolution)
        previous = self._previous(tag)
        found = (self._thin if cell.gpus else self._full)(resolution, previous)
        save(self._folder.path, found)
        self._locked.add(tag)
        versions = [(wheel.name, wheel.version) for wheel in found.wheels]
        reasons = self._index.yanked
        yanked = tuple((*version, reasons[version]) for version in versions if version in reasons)
        return LockResult(tag=tag, previous=previous, lock=found, yanked=yanked)

    def _previous(self, tag: str) -> LockedCell | None:
        """The present lock; None: it does not exist, or is invalid and will be replaced."""
        if not (self._folder.path / tag / "lock.json").exists():
            return None
        try:
            previous = load_locked(self._folder.path, tag)
        except Stale as error:
            self._observer.say(f"{tag}: ignoring the versions of the present lock: {error.message}")
            return None
        names = {*EVERYTHING, *(wheel.name for wheel in previous.wheels)}
        unknown = [name for name in self._request.upgrade if canonicalize_name(name) not in names]
        if unknown and not set(EVERYTHING) & set(self._request.upgrade):
            raise ConfigError(
                f"--upgrade {', '.join(unknown)}: not in the lock of {tag}",
                hint="its requirements.txt lists its packages",
            )
        return previous

    def _full(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        settings, facts = self._index.pages.settings, self._folder.facts
        record = record_of(
            resolution, facts, by_record=self._request.by_record, pytorch_url=settings.pytorch_url
        )
        if self._systems.builds(resolution):
            build = resolution.build
            own = build is not None and build.source is Source.PYTORCH and not record.known
            self._index.demand_reachable((Source.DEFAULT, Source.PYTORCH) if own else (Source.DEFAULT,))
        return lock(
            resolution,
            self._index,
            self._systems.of(resolution, facts),
            Versions(as_of=self._date, previous=previous, upgrade=self._request.upgrade),
            bound=self._folder.bound,
            untrusted=settings.untrusted,
            record=record,
        )

    def _thin(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        """The lock of a thin cell, made from the lock for all GPUs, which must be upgraded first."""
        full = tag_of(self._folder.below(resolution.cell))
        request = self._request
        if full not in self._locked and (request.upgrade or request.upgrade_base or request.as_of):
            raise ConfigError(
                f"{tag_of(resolution)}: cannot be upgraded alone: its packages come from the lock of {full}",
                hint=f"run: torchkiln lock {full} (with this command's --upgrade, --upgrade-base and"
                " --as-of); then run this command without them",
            )
        return self._folder.thin(resolution, previous)


def date_of(as_of: str | None) -> str:
    """*as_of* as an ISO date; today (UTC) if it is None.

    :raises ConfigError: it is not a valid date.
    """
    if as_of is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return datetime.strptime(as_of, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise ConfigError(
            f"--as-of {as_of!r} is not a valid date", hint="write it as YYYY-MM-DD: 2026-11-21"
        ) from None
