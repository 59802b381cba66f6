"""`torchkiln lock`: name every byte of the chosen cells, and prove that the names still fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.shared.options import cache_root, images_folder
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import ConfigError, KilnError, NothingSelected, Stale
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.operating_system import DEFAULT_OS

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts


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
@click.option(
    "--public-record",
    "by_record",
    is_flag=True,
    help="what is only on PyTorch's own index: by the hashes on public record, without asking that index",
)
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
    by_record: bool,
    check: bool,
    since: str | None,
    as_json: bool,
    as_of: str | None,
    images: Path,
) -> None:
    """Lock the chosen cells: every wheel, OS package and the base by sha256, into images/<tag>/lock.json.

    A lock keeps its versions unless --upgrade. The tags of the locked cells go to stdout.
    """
    from torchkiln.cli.shared.locking import Locking
    from torchkiln.matrix.resolve import resolve

    if as_json and since is None:
        raise click.UsageError("--json is for --diff")
    if since is not None:
        from torchkiln.cli.shared.lock_changes import show_changes

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
    wanted = _lockable(resolutions, sweeping=sweeping, facts=facts if by_record else None)
    locking = Locking(images, facts, bound, as_of, below, upgrade, upgrade_base, by_record)
    locking.run(wanted, sweeping=sweeping)


def _check(
    resolutions: tuple[Resolution, ...],
    below: Mapping[Cell, Resolution],
    bound: tuple[str, ...],
    images: Path,
    *,
    sweeping: bool,
) -> None:
    from torchkiln.base import artefact, tools
    from torchkiln.lock.components import left_behind
    from torchkiln.lock.lock import how_to_lock, staleness
    from torchkiln.matrix.tags import tag_of

    stale, fresh = [], 0
    for resolution in resolutions:
        if resolution.build is None:
            continue
        tag = tag_of(resolution)
        # Only what the default index serves must be committed; other locks are checked where they are.
        committed = resolution.lockable and resolution.cell.os == DEFAULT_OS and not resolution.components
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
    from torchkiln.build.image import known_layers
    from torchkiln.lock.lock import load_locked, save
    from torchkiln.matrix.tags import tag_of
    from torchkiln.store.store import Store

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


def _lockable(
    resolutions: tuple[Resolution, ...], *, sweeping: bool, facts: Facts | None = None
) -> tuple[Resolution, ...]:
    """What can be locked at all. A sweep leaves the rest out, a line each; a single cell says why not.

    :param facts: given where what is on public record counts.
    """
    from torchkiln.index.settings import PYTORCH_VARIABLE
    from torchkiln.matrix.public_record import on_record
    from torchkiln.matrix.resolve import require_buildable

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
        known = facts is not None and on_record(facts, build, cell.python)
        there = known or os.environ.get(PYTORCH_VARIABLE)
        if sweeping and build.source is Source.PYTORCH and not there:
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
