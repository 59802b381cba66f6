"""Runs `lock` for the cells that can be locked with the configured indexes; they share indexes and bases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, KilnError, NothingSelected, Stale, Unresolvable
from torchkiln.index.package_index import open_index
from torchkiln.index.settings import PYTORCH_ADDRESS, PYTORCH_VARIABLE
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import (
    EVERYTHING,
    NO_RECORD,
    PublicRecord,
    Versions,
    how_to_lock,
    load_locked,
    lock,
    save,
)
from torchkiln.locks.systems import Pythons, Systems
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.public_record import on_record, recorded
from torchkiln.matrix.resolve import require_buildable
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store


def lockable(
    folder: LockFolder,
    cells: Iterable[Cell],
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str],
    by_record: bool = False,
    sweeping: bool = False,
) -> tuple[Cell, ...]:
    """The *cells* that can be locked with the indexes that *environ* configures.

    :param by_record: also select cells whose wheels are in the public record.
    :param sweeping: skip the other cells and print a line for each, instead of raising an exception.
    :raises Unresolvable: a cell is unavailable and *sweeping* is false.
    :raises NothingSelected: none of them can be locked.
    """
    found = []
    for cell in cells:
        resolution = folder.resolution(cell)
        try:
            build = require_buildable(resolution)
        except KilnError as error:
            if not sweeping:
                raise
            say(f"skipped: {error.message}")
            continue
        known = by_record and on_record(folder.facts, build, cell.python)
        reachable = known or environ.get(PYTORCH_VARIABLE)
        if sweeping and build.source is Source.PYTORCH and not reachable:
            name = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os})"
            say(f"skipped: {name} is only on PyTorch's own index; {PYTORCH_VARIABLE} is not set")
            continue
        found.append(cell)
    if not found:
        raise NothingSelected(
            "none of the selected cells can be locked", hint="`torchkiln list` shows the status of each cell"
        )
    return tuple(found)


def record_of(
    resolution: Resolution, facts: Facts, *, by_record: bool, pytorch_url: str | None
) -> PublicRecord:
    """The public record of the cell's wheels; with *by_record* the lock uses it instead of the index.

    :raises Unresolvable: the record is incomplete; or neither *by_record* nor *pytorch_url* is set.
    """
    build, python = resolution.build, resolution.cell.python
    if build is None or build.source is not Source.PYTORCH:
        return NO_RECORD
    known = on_record(facts, build, python)
    if by_record and not known:
        raise Unresolvable(
            f"{tag_of(resolution)}: not all of torch, torchvision and torchaudio {build.variant} for Python"
            f" {python} are on public record",
            hint=f"omit --public-record, and set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or a mirror of it",
        )
    if known and not by_record and pytorch_url is None:
        raise Unresolvable(
            f"{tag_of(resolution)}: its torch is only on PyTorch's own index, which is not configured",
            hint=f"set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or a mirror of it, or use the hashes on public"
            f" record: {how_to_lock(resolution.cell, by_record=True)}",
        )
    return PublicRecord(torch=recorded(facts, build, python), known=known if by_record else ())


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
