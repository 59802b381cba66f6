"""One run of `torchkiln lock`: cells one after the other, each into its folder; what all need, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.options import cache_root
from torchkiln.errors import ConfigError, KilnError, Stale, Unresolvable, printable
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedTools

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts
    from torchkiln.model.index import Given


class Locking:
    """One run over several cells: the indexes and each OS's base are opened once."""

    def __init__(
        self,
        images: Path,
        facts: Facts,
        bound: tuple[str, ...],
        as_of: str | None,
        below: Mapping[Cell, Resolution],
        upgrade: tuple[str, ...],
        upgrade_base: bool,
        by_record: bool,
    ) -> None:
        from torchkiln.index.package_index import open_index
        from torchkiln.store.store import Store

        self._images, self._bound, self._below, self._upgrade = images, bound, below, upgrade
        self._as_of, self._date = as_of, date_of(as_of)
        self._facts, self._upgrade_base, self._by_record = facts, upgrade_base, by_record
        self._store = Store(cache_root(), on_wait=waiting)
        self._index = open_index(os.environ, self._store)
        self._bases: dict[str, LockedBase] = {}
        self._tools: dict[tuple[str, str], LockedTools] = {}
        if left_out := self._index.pages.settings.left_out:
            click.echo(f"lock: not followed, by design: {', '.join(left_out)}", err=True)

    def run(self, resolutions: tuple[Resolution, ...], *, sweeping: bool) -> None:
        """Lock each; in a sweep one failure does not stop the others, and the worst ends the run."""
        from torchkiln.matrix.tags import tag_of

        failures: list[KilnError] = []
        for resolution in resolutions:
            tag = tag_of(resolution)
            try:
                self._one(resolution, tag)
            except KilnError as error:
                if not sweeping:
                    raise
                click.echo(f"lock: {tag}: {error.message}\n  {error.hint}", err=True)
                failures.append(error)
                continue
            click.echo(tag)
        if failures:
            worst = max(failures, key=lambda error: error.exit_code)
            raise type(worst)(
                f"{len(failures)} of {len(resolutions)} cells could not be locked", hint=worst.hint
            )

    def _one(self, resolution: Resolution, tag: str) -> None:
        from torchkiln.lock.lock import save
        from torchkiln.matrix.public_record import told_of_record
        from torchkiln.model.stand_in import resolved_against, stand_ins

        previous = self._previous(tag)
        if self._upgrade and "*" not in self._upgrade and previous:
            known = {wheel.name for wheel in previous.wheels}
            if strangers := [name for name in self._upgrade if name.lower().replace("_", "-") not in known]:
                raise ConfigError(f"--upgrade {', '.join(strangers)}: not in the lock of {tag}")
        locked = (
            self._beside(resolution, previous) if resolution.components else self._plain(resolution, previous)
        )
        save(self._images, locked)
        total = sum(wheel.size for wheel in locked.wheels)
        unknown = f" and {len(locked.by_record)} of unknown size" if locked.by_record else ""
        named = f"{len(locked.wheels) - len(locked.by_record)} wheels, {total / 1e9:.2f} GB{unknown}"
        if locked.archives:
            more = sum(archive.size for archive in locked.archives)
            named += f", {len(locked.archives)} archives, {more / 1e9:.2f} GB"
        changes = (
            "unchanged"
            if previous == locked
            else "; ".join(_moves(previous, locked)) or "new facts, same wheels"
        )
        click.echo(f"lock: {tag}: {named}: {changes}", err=True)
        for wheel in locked.wheels:
            if (reason := self._index.yanked.get((wheel.name, wheel.version))) is not None:
                why = f": {printable(reason)[:200]}" if reason else ""
                click.echo(f"lock: {tag}: warning: {wheel.name} {wheel.version} was yanked{why}", err=True)
        if names := stand_ins(locked):
            click.echo(f"lock: {tag}: {resolved_against(names)}", err=True)
        if locked.by_record:
            click.echo(f"lock: {tag}: {told_of_record(locked.by_record)}", err=True)

    def _plain(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        from torchkiln.lock.lock import lock as lock_cell
        from torchkiln.matrix.public_record import recorded
        from torchkiln.matrix.tags import tag_of

        given = self._given(resolution, tag_of(resolution))
        base, build = self._base(resolution.cell.os), resolution.build
        return lock_cell(
            resolution,
            self._index,
            base,
            as_of=self._date,
            tools=self._tools_on(base, resolution.tools) if resolution.tools else None,
            bound=self._bound,
            previous=previous,
            upgrade=self._upgrade,
            stand_ins=self._index.pages.settings.stand_ins,
            recorded=recorded(self._facts, build, resolution.cell.python) if build else None,
            given=given,
            archives=self._archives(resolution),
        )

    def _given(self, resolution: Resolution, tag: str) -> tuple[Given, ...]:
        """The wheels that public record tells of, where it was asked for and they are nowhere else.

        :raises Unresolvable: it does not tell of all of them; or it would, and was not asked for.
        """
        from torchkiln.index.settings import PYTORCH_VARIABLE
        from torchkiln.lock.lock import how_to_lock
        from torchkiln.matrix.public_record import on_record

        build = resolution.build
        if build is None or build.source is not Source.PYTORCH:
            return ()
        known = on_record(self._facts, build, resolution.cell.python)
        if self._by_record and not known:
            raise Unresolvable(
                f"{tag}: not all of torch, torchvision and torchaudio {build.variant} for Python"
                f" {resolution.cell.python} are on public record",
                hint=f"leave --public-record out, and set {PYTORCH_VARIABLE} to that index's address",
            )
        if known and not self._by_record and self._index.pages.settings.pytorch_url is None:
            raise Unresolvable(
                f"{tag}: its torch is only on PyTorch's own index, which is not configured",
                hint=f"set {PYTORCH_VARIABLE} to that index's address; or, as the hashes of what it takes"
                f" from there are on public record: {how_to_lock(resolution.cell, by_record=True)}",
            )
        return known if self._by_record else ()

    def _beside(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        """On the plain cell's lock, whose day goes on to hold unless another is asked for."""
        from torchkiln.lock.components import lock_beside
        from torchkiln.lock.lock import how_to_lock, load_locked
        from torchkiln.matrix.tags import tag_of

        below = self._below[resolution.cell]
        return lock_beside(
            resolution,
            below,
            load_locked(self._images, tag_of(below), how=how_to_lock(below.cell)),
            self._index,
            as_of=self._date if self._as_of or self._upgrade else None,
            bound=self._bound,
            previous=previous,
            upgrade=self._upgrade,
        )

    def _archives(self, resolution: Resolution) -> tuple[LockedArchive, ...]:
        toolkit = resolution.toolkit
        return self._facts.redist.releases.get(toolkit.release, ()) if toolkit else ()

    def _previous(self, tag: str) -> LockedCell | None:
        """The present lock; one that is broken gives no versions to keep, and is made anew."""
        from torchkiln.lock.lock import load_locked

        if not (self._images / tag / "lock.json").exists():
            return None
        try:
            return load_locked(self._images, tag)
        except Stale as error:
            click.echo(f"lock: {tag}: made anew, no version is kept: {error.message}", err=True)
            return None

    def _base(self, os_name: str) -> LockedBase:
        """The locked base of *os_name*; built where there is none yet, or anew when asked."""
        from torchkiln.base import artefact
        from torchkiln.base.recipe import recipe
        from torchkiln.cli.base import note_beside

        if os_name not in self._bases:
            base = artefact.read_lock(self._images, os_name)
            if base is None or self._upgrade_base:
                base = artefact.rebuild(
                    recipe(os_name),
                    self._store,
                    environ=os.environ,
                    locked=base,
                    say=_say,
                )
                artefact.write_lock(self._images, base)
                note_beside(self._images, base, self._store)
            self._bases[os_name] = base
        return self._bases[os_name]

    def _tools_on(self, base: LockedBase, name: str) -> LockedTools:
        """The locked tools *name* on *base*; built where there are none on it yet."""
        from torchkiln.base import artefact, tools
        from torchkiln.cli.base import build_tools, note_beside

        if (base.os, name) not in self._tools:
            found = tools.read_lock(self._images, base.os, name)
            if found is None or found.base != base.digest:
                artefact.ensure(base, self._store, os_name=base.os, locked_only=True, say=_say)
                found = build_tools(name, base, self._store, _say, locked=found)
                tools.write_lock(self._images, found)
                note_beside(self._images, found, self._store)
            self._tools[base.os, name] = found
        return self._tools[base.os, name]


def _say(line: str) -> None:
    click.echo(f"lock: {line}", err=True)


def _moves(previous: LockedCell | None, locked: LockedCell) -> list[str]:
    """What moved between two locks, a phrase each."""
    from torchkiln.compare.locks import lock_change
    from torchkiln.matrix.tags import tag_of

    if previous is None:
        return ["new"]
    found = lock_change(tag_of(locked.resolution), previous, locked)
    told = [
        f"{one.name} {one.a or '(new)'} → {one.b or '(gone)'}" for one in found.packages if one.system != "os"
    ]
    return told + (["base"] if found.base[0] != found.base[1] else [])


def date_of(as_of: str | None) -> str:
    """*as_of* as an ISO date; today (UTC) where it is None.

    :raises ConfigError: it is no date.
    """
    if as_of is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return datetime.strptime(as_of, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise ConfigError(f"--as-of {as_of}: not a date", hint="write it as 2026-11-21") from None
