"""`torchkiln lock`: name every byte of the chosen cells, and prove that the names still fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from torchkiln.build.record import record_layers
from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.lock_changes import show_changes
from torchkiln.cli.shared.lock_output import Output, say
from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import ConfigError, Stale
from torchkiln.lock.choice import lockable
from torchkiln.lock.folder import LockFolder
from torchkiln.lock.lock import how_to_lock
from torchkiln.lock.session import LockRequest, LockSession
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


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
    if as_json and since is None:
        raise click.UsageError("--json is for --diff")
    if since is not None:
        show_changes(since, images, chosen.tags() if chosen.any else (), as_json=as_json)
        return
    cells, matrix, facts = chosen.cells(must_name=not check)
    folder = LockFolder(images, matrix, facts)
    sweeping = chosen.every or len(cells) > 1
    if check:
        _check(folder, cells, sweeping=sweeping)
        return
    wanted = lockable(
        folder, cells, say, environ=os.environ, by_record=by_record and not record, sweeping=sweeping
    )
    store = Store(cache_root(), on_wait=waiting)
    if record:
        _record(folder, wanted, store, sweeping=sweeping)
        return
    request = LockRequest(as_of=as_of, upgrade=upgrade, upgrade_base=upgrade_base, by_record=by_record)
    LockSession(folder, request, store, environ=os.environ, observer=Output()).run(wanted, sweeping=sweeping)


def _check(folder: LockFolder, cells: Sequence[Cell], *, sweeping: bool) -> None:
    found = folder.check(cells, sweeping=sweeping)
    if found.stale:
        how = "torchkiln lock --all" if sweeping else how_to_lock(cells[0])
        raise Stale("\n".join(found.stale), hint=f"run: {how}")
    say(f"{found.fresh} fresh")


def _record(folder: LockFolder, cells: Sequence[Cell], store: Store, *, sweeping: bool) -> None:
    for cell in cells:
        tag = tag_of(folder.resolution(cell))
        became = record_layers(folder.path, tag, store)
        if became == "recorded":
            click.echo(tag)
        elif became == "already":
            say(f"{tag}: recorded already, left as it is")
        elif sweeping:
            say(f"{tag}: not built here, left as it is")
        else:
            raise ConfigError(f"{tag} is not built in this cache", hint="build it first, then record")
