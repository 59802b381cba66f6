"""`torchkiln lock`: locks cells, and checks or records their locks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from torchkiln.cli.shared.console import echo, open_cache
from torchkiln.cli.shared.lock_output import LockOutput, say
from torchkiln.cli.shared.options import as_of_option, images_folder, mirror_option, upgrade_option
from torchkiln.cli.shared.selection import CellOptions, own_cell_selection
from torchkiln.engine.known import record_layers
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import ConfigError, Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import how_to_lock
from torchkiln.locks.session import LockRequest, LockSession, lockable
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.store.store import Store


@click.command("lock")
@own_cell_selection
@upgrade_option
@click.option("--upgrade-base", is_flag=True, help="build the base from the distribution's current packages")
@click.option(
    "--record", is_flag=True, help="write the digests of layers built on this machine into the locks"
)
@click.option(
    "--public-record",
    "by_record",
    is_flag=True,
    help="lock wheels of PyTorch's own index by their publicly recorded hashes, without using that index",
)
@click.option("--check", is_flag=True, help="only list stale locks (exit 5); needs no network")
@as_of_option
@mirror_option
@images_folder
def lock(
    chosen: CellOptions,
    upgrade: tuple[str, ...],
    upgrade_base: bool,
    record: bool,
    by_record: bool,
    check: bool,
    as_of: str | None,
    images: Path,
) -> None:
    """Write a lock for each selected cell, images/<tag>/lock.json: every wheel and the base, with sha256.

    A lock that exists keeps its versions unless --upgrade is used. Prints the tags of the locked cells.
    """
    cells, matrix, facts = chosen.cells(must_name=not check)
    folder = LockFolder(images, matrix, facts)
    sweeping = chosen.every or len(cells) > 1
    if check:
        _check(folder, cells, sweeping=sweeping)
        return
    to_lock = lockable(
        folder, cells, say, environ=os.environ, by_record=by_record and not record, sweeping=sweeping
    )
    store = open_cache()
    if record:
        _record(folder, to_lock, store, sweeping=sweeping)
        return
    request = LockRequest(as_of=as_of, upgrade=upgrade, upgrade_base=upgrade_base, by_record=by_record)
    pythons = StandalonePythons(store=store, environ=os.environ, locate=matrix.locate)
    session = LockSession(folder, request, store, environ=os.environ, observer=LockOutput(), pythons=pythons)
    session.run(to_lock, sweeping=sweeping)


def _check(folder: LockFolder, cells: Sequence[Cell], *, sweeping: bool) -> None:
    found = folder.check(cells, sweeping=sweeping)
    if found.stale:
        command = "torchkiln lock --all" if sweeping else how_to_lock(cells[0])
        raise Stale("\n".join(found.stale), hint=f"run: {command}")
    say(f"{found.fresh} fresh")


def _record(folder: LockFolder, cells: Sequence[Cell], store: Store, *, sweeping: bool) -> None:
    for cell in cells:
        tag = tag_of(folder.resolution(cell))
        result = record_layers(folder.path, tag, store)
        if result == "recorded":
            echo(tag)
        elif result == "already":
            say(f"{tag}: unchanged, its layers are recorded already")
        elif sweeping:
            say(f"{tag}: unchanged, it was not built on this machine")
        else:
            raise ConfigError(
                f"{tag}: not built on this machine", hint=f"build it first: torchkiln build {tag}"
            )
