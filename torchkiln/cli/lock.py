"""`torchkiln lock`: name every byte of the chosen cells, and prove that the names still fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.chosen import Chosen, selection
from torchkiln.cli.console import waiting
from torchkiln.cli.options import cache_root, images_folder
from torchkiln.errors import ConfigError, KilnError, NothingSelected, Stale
from torchkiln.nouns import Cell, LockedArchive, LockedBase, LockedCell, LockedTools, Resolution, Source

if TYPE_CHECKING:
    from torchkiln.facts import Facts


@click.command("lock")
@selection
@click.option(
    "--upgrade",
    "upgrade",
    multiple=True,
    is_flag=False,
    flag_value="*",
    metavar="[PACKAGE]",
    help="let this package, or without a name every package, move to its newest fitting version",
)
@click.option("--upgrade-base", is_flag=True, help="build the base anew from the archive's present state")
@click.option("--record", is_flag=True, help="note the layers that this machine built from the locks")
@click.option("--check", is_flag=True, help="only say which locks are stale (exit 5); needs no network")
@click.option(
    "--diff", "since", metavar="GIT_REF", help="only tell what the locks say otherwise than then, as Markdown"
)
@click.option("--json", "as_json", is_flag=True, help="--diff: one object on stdout")
@click.option(
    "--as-of",
    metavar="DATE",
    help="packages uploaded on that day (UTC) or later do not take part  [default: today]",
)
@images_folder
def lock(
    chosen: Chosen,
    upgrade: tuple[str, ...],
    upgrade_base: bool,
    record: bool,
    check: bool,
    since: str | None,
    as_json: bool,
    as_of: str | None,
    images: Path,
) -> None:
    """Lock the chosen cells: every wheel, OS package and the base by sha256, into images/<tag>/lock.json.

    A lock keeps its versions unless --upgrade. The tags of the locked cells go to stdout.
    """
    from torchkiln.resolve import resolve

    if as_json and since is None:
        raise click.UsageError("--json is for --diff")
    if since is not None:
        from torchkiln.cli.lock_changes import show_changes

        show_changes(since, images, chosen.tags() if chosen.any else (), as_json=as_json)
        return
    cells, matrix, facts = chosen.cells(must_name=not check)
    resolutions = tuple(resolve(cell, matrix, facts) for cell in cells)
    bound = next((index.packages for index in matrix.indexes if index.name == Source.PYTORCH.value), ())
    sweeping = chosen.every or len(resolutions) > 1
    below = {one.cell: resolve(replace(one.cell, components=()), matrix, facts) for one in resolutions}
    if check:
        _check(resolutions, below, bound, images, sweeping=sweeping)
        return
    if record:
        _record(_lockable(resolutions, sweeping=sweeping), images, sweeping=sweeping)
        return
    wanted = _lockable(resolutions, sweeping=sweeping)
    _Locking(images, facts, bound, as_of, below, upgrade, upgrade_base).run(wanted, sweeping=sweeping)


def _check(
    resolutions: tuple[Resolution, ...],
    below: Mapping[Cell, Resolution],
    bound: tuple[str, ...],
    images: Path,
    *,
    sweeping: bool,
) -> None:
    from torchkiln.base import artefact, tools
    from torchkiln.lock import how_to_lock, staleness
    from torchkiln.lock_beside import left_behind
    from torchkiln.tags import tag_of

    stale, fresh = [], 0
    for resolution in resolutions:
        if resolution.build is None:
            continue
        tag = tag_of(resolution)
        # Only what the default index serves must be committed; other locks are checked where they are.
        committed = resolution.lockable and resolution.cell.os == "debian12" and not resolution.components
        if sweeping and not committed and not (images / tag).is_dir():
            continue
        os_name = resolution.cell.os
        on_top = tools.read_lock(images, os_name, resolution.tools) if resolution.tools else None
        reasons = staleness(images, resolution, bound, artefact.read_lock(images, os_name), on_top)
        if resolution.components and not reasons:
            reasons = left_behind(images, resolution, below[resolution.cell])
        stale += [f"{tag}: {reason}" for reason in reasons]
        fresh += not reasons
    if stale:
        how = "torchkiln lock --all" if sweeping else how_to_lock(resolutions[0].cell)
        raise Stale("\n".join(stale), hint=f"run: {how}")
    click.echo(f"lock: {fresh} fresh", err=True)


def _record(resolutions: tuple[Resolution, ...], images: Path, *, sweeping: bool) -> None:
    """Write the layers' digests into the locks they were built from; builds then hold to them."""
    from torchkiln.engines.embedded import known_layers
    from torchkiln.lock import load_locked, save
    from torchkiln.store import Store
    from torchkiln.tags import tag_of

    store = Store(cache_root())
    for resolution in resolutions:
        tag = tag_of(resolution)
        locked = load_locked(images, tag)
        layers = known_layers(locked, store)
        if layers is None and locked.layers:
            click.echo(f"lock: {tag}: recorded already, left as it is", err=True)
            continue
        if layers is None and not sweeping:
            raise ConfigError(f"{tag} is not built in this cache", hint="build it first, then record")
        if layers is None:
            click.echo(f"lock: {tag}: not built here, left as it is", err=True)
            continue
        save(images, replace(locked, layers=layers))
        click.echo(tag)


def _lockable(resolutions: tuple[Resolution, ...], *, sweeping: bool) -> tuple[Resolution, ...]:
    """What can be locked at all. A sweep leaves the rest out, a line each; a single cell says why not."""
    from torchkiln.index.settings import PYTORCH_VARIABLE
    from torchkiln.resolve import require_buildable

    wanted = []
    for resolution in resolutions:
        cell = resolution.cell
        name = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os})"
        try:
            build = require_buildable(resolution)
        except KilnError as error:
            if not sweeping:
                raise
            click.echo(f"lock: left out: {error.message}", err=True)
            continue
        if sweeping and build.source is Source.PYTORCH and not os.environ.get(PYTORCH_VARIABLE):
            click.echo(
                f"lock: left out: {name} is only on PyTorch's own index; {PYTORCH_VARIABLE} is not set",
                err=True,
            )
            continue
        wanted.append(resolution)
    if not wanted:
        raise NothingSelected(
            "none of the chosen cells can be locked here", hint="`list` shows what each one is"
        )
    return tuple(wanted)


def _date(as_of: str | None) -> str:
    if as_of is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return datetime.strptime(as_of, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise ConfigError(f"--as-of {as_of}: not a date", hint="write it as 2026-11-21") from None


class _Locking:
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
    ) -> None:
        from torchkiln.index.package_index import open_index
        from torchkiln.store import Store

        self._images, self._bound, self._below, self._upgrade = images, bound, below, upgrade
        self._as_of, self._date = as_of, _date(as_of)
        self._facts, self._upgrade_base = facts, upgrade_base
        self._store = Store(cache_root(), on_wait=waiting)
        self._index = open_index(os.environ, self._store)
        self._bases: dict[str, LockedBase] = {}
        self._tools: dict[tuple[str, str], LockedTools] = {}
        if left_out := self._index.pages.settings.left_out:
            click.echo(f"lock: not followed, by design: {', '.join(left_out)}", err=True)

    def run(self, resolutions: tuple[Resolution, ...], *, sweeping: bool) -> None:
        """Lock each; in a sweep one failure does not stop the others, and the worst ends the run."""
        from torchkiln.tags import tag_of

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
        from torchkiln.lock import save
        from torchkiln.stand_in import resolved_against, stand_ins

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
        named = f"{len(locked.wheels)} wheels, {total / 1e9:.2f} GB"
        if locked.archives:
            more = sum(archive.size for archive in locked.archives)
            named += f", {len(locked.archives)} archives, {more / 1e9:.2f} GB"
        changes = (
            "unchanged"
            if previous == locked
            else "; ".join(_moves(previous, locked)) or "new facts, same wheels"
        )
        click.echo(f"lock: {tag}: {named}: {changes}", err=True)
        if names := stand_ins(locked):
            click.echo(f"lock: {tag}: {resolved_against(names)}", err=True)

    def _plain(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        from torchkiln.facts import recorded
        from torchkiln.lock import lock as lock_cell

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
            archives=self._archives(resolution),
        )

    def _beside(self, resolution: Resolution, previous: LockedCell | None) -> LockedCell:
        """On the plain cell's lock, whose day goes on to hold unless another is asked for."""
        from torchkiln.lock import how_to_lock, load_locked
        from torchkiln.lock_beside import lock_beside
        from torchkiln.tags import tag_of

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
        from torchkiln.lock import load_locked

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
    from torchkiln.lockdiff import lock_change
    from torchkiln.tags import tag_of

    if previous is None:
        return ["new"]
    found = lock_change(tag_of(locked.resolution), previous, locked)
    told = [
        f"{one.name} {one.a or '(new)'} → {one.b or '(gone)'}" for one in found.packages if one.system != "os"
    ]
    return told + (["base"] if found.base[0] != found.base[1] else [])
