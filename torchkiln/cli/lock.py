"""`torchkiln lock`: locks cells, and checks or records their locks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from torchkiln.base.remake import APT_EFFECTS, committed_effects
from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.lock_output import LockOutput, say
from torchkiln.cli.shared.options import images_folder, mirror_option
from torchkiln.cli.shared.project import ProjectOptions, project_cell, project_options
from torchkiln.cli.shared.project_output import project_json, show_project
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.engine.record import record_layers
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import ConfigError, Stale
from torchkiln.locks.choice import lockable
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import how_to_lock
from torchkiln.locks.session import LockRequest, LockSession
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.projects.apt.wanted_packages import save_locked
from torchkiln.projects.file import load_project
from torchkiln.projects.freshness import require_fresh_project
from torchkiln.projects.locking import lock_folder
from torchkiln.projects.ready import ProjectRequest, fresh_parent, needs_of
from torchkiln.store.store import Store


@click.command("lock")
@cell_selection
@click.option(
    "--upgrade",
    "upgrade",
    multiple=True,
    is_flag=False,
    flag_value="*",
    metavar="[PACKAGE]",
    help="upgrade this package, or without a name every package, to the newest version that fits",
)
@click.option(
    "--allow-missing",
    multiple=True,
    metavar="LIBRARY|PACKAGE",
    help="with --project: allow this library (libcudart.so.11.0), or every library that this package needs,"
    " to be missing  [default: those of the project's lock]",
)
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
@click.option("--json", "as_json", is_flag=True, help="with --project: print JSON")
@click.option(
    "--as-of",
    metavar="DATE",
    help="ignore packages uploaded on this day (UTC) or later  [default: today]",
)
@project_options
@mirror_option
@images_folder
def lock(
    chosen: CellOptions,
    project: ProjectOptions | None,
    allow_missing: tuple[str, ...],
    upgrade: tuple[str, ...],
    upgrade_base: bool,
    record: bool,
    by_record: bool,
    check: bool,
    as_json: bool,
    as_of: str | None,
    images: Path,
) -> None:
    """Write a lock for each selected cell, images/<tag>/lock.json: every wheel and the base, with sha256.

    A lock that exists keeps its versions unless --upgrade is used. Prints the tags of the locked cells.

    With --project, lock the packages of a project on the image of one cell, into DIR/torchkiln.lock.json.
    Prints the changed packages, and the project's name.
    """
    if allow_missing and project is None:
        raise click.UsageError("--allow-missing requires --project")
    if as_json and project is None:
        raise click.UsageError("--json requires --project")
    if project is not None:
        if upgrade_base or record or by_record:
            raise click.UsageError(
                "--project cannot be used with --upgrade-base, --record or --public-record"
            )
        cell, locks = project_cell(chosen, project.folder, images)
        wanted = ProjectRequest(
            folder=project.folder,
            cell=cell,
            choice=project.choice,
            as_of=as_of,
            upgrade=upgrade,
            may_lack=tuple(filter(None, allow_missing)) if allow_missing else None,
        )
        (_check_project if check else _lock_project)(wanted, locks, as_json=as_json)
        return
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


def _lock_project(request: ProjectRequest, locks: LockFolder, *, as_json: bool) -> None:
    from torchkiln.projects.sources.sdist import SandboxedBuilder  # loads slowly

    store = open_cache()
    with LockOutput().reporting() as report:
        builder = SandboxedBuilder(store=store, report=report, locate=locks.matrix.locate)
        found = lock_folder(request, locks, store, environ=os.environ, builder=builder, report=report)
    show_project(found)
    path = save_locked(request.folder, found.lock, store)
    say(f"wrote {path}")
    click.echo(project_json(found) if as_json else found.lock.name)


def _check_project(request: ProjectRequest, locks: LockFolder, *, as_json: bool) -> None:
    if as_json:
        raise click.UsageError("--check prints no JSON")
    lock = load_project(request.folder)
    if lock is None:
        raise Stale(
            f"{request.folder}: the project is not locked yet",
            hint=f"run: torchkiln lock --project {request.folder}",
        )
    parent = fresh_parent(locks, request.cell, os.environ)
    needs = needs_of(request.folder, parent, open_cache(), request.chosen(lock))
    require_fresh_project(request.folder, lock, needs, parent)
    effects = request.folder / APT_EFFECTS
    if lock.apt and effects.exists() and committed_effects(request.folder, lock.apt) is None:
        raise Stale(
            f"{effects}: it was made for another lock of the project",
            hint=f"run: torchkiln lock --project {request.folder} --upgrade",
        )
    say("1 fresh")


def _record(folder: LockFolder, cells: Sequence[Cell], store: Store, *, sweeping: bool) -> None:
    for cell in cells:
        tag = tag_of(folder.resolution(cell))
        result = record_layers(folder.path, tag, store)
        if result == "recorded":
            click.echo(tag)
        elif result == "already":
            say(f"{tag}: unchanged, its layers are recorded already")
        elif sweeping:
            say(f"{tag}: unchanged, it was not built on this machine")
        else:
            raise ConfigError(
                f"{tag}: not built on this machine", hint=f"build it first: torchkiln build {tag}"
            )
