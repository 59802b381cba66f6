"""`torchkiln vault`: keeps all files that locks name, for builds without package index and archive."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from torchkiln.cli.shared.console import echo, open_cache, progress, say, size
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import FOLDER, images_folder, json_option, mirror_option, vault_option
from torchkiln.cli.shared.project import demand_lock, project_cell
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.engine.environment import Environment, open_environment
from torchkiln.engine.keep import Kept, vault_tag
from torchkiln.engine.keep import check as check_files
from torchkiln.engine.keep import drop as drop_locks
from torchkiln.engine.keep import keep as keep_files
from torchkiln.engine.keep import upstream as upstream_states
from torchkiln.errors import ConfigError, NothingSelected, VerificationFailed
from torchkiln.locks.lock import load_locked
from torchkiln.projects.build import source_of
from torchkiln.projects.keep import keep_project, project_tag
from torchkiln.projects.source import ProjectRequest
from torchkiln.util.files import remove_tree
from torchkiln.vault.places import vault_at

_where = click.argument("where", metavar="FOLDER|oci://REPOSITORY")


@click.group("vault", cls=Group)
def vault() -> None:
    """Keep all files that locks name, in a folder or a registry, and check or drop them.

    `build --vault WHERE` then needs no package index and no archive: see docs/vault.md.
    """


@vault.command("keep")
@_where
@cell_selection
@click.option("--project", type=FOLDER, metavar="DIR", help="the files of the project in DIR")
@images_folder
@mirror_option
@vault_option
@json_option
def keep(where: str, chosen: CellOptions, project: Path | None, images: Path, as_json: bool) -> None:
    """Copy the files of the selected locks to the vault; print the name of each lock there.

    With --project, copy those of a project and of its image. Files that are there are not copied again, so an
    interrupted run can be repeated.
    """
    place, store = vault_at(where, os.environ), open_cache()
    place.prepare()

    def kept(name: str, keeping: Callable[[Environment], Kept]) -> None:
        with progress(quiet=False) as observer:
            found = keeping(open_environment(store, observer=observer, say=say))
        say(f"{name}: {found.files} files, {size(found.bytes)}, of which {size(found.added)} are new")
        numbers = {"files": found.files, "bytes": found.bytes, "added_bytes": found.added}
        click.echo(json.dumps({"tag": found.tag, **numbers}) if as_json else found.tag)

    if project is None:
        for tag in _locked(images) if chosen.every else chosen.tags():
            kept(tag, partial(keep_files, load_locked(images, tag), place, images=images))
        return
    cell, locks = project_cell(chosen, project, images)
    request = ProjectRequest(folder=project, cell=cell, choice=None)
    source = source_of(request, locks, store, environ=os.environ, made=None)
    kept(source.lock.parent, lambda environment: keep_files(source.cell, place, environment, images))
    locate = locks.matrix.locate
    kept(source.lock.name, lambda environment: keep_project(source, place, environment, locate))


@vault.command("check")
@_where
@click.option("--upstream", is_flag=True, help="instead, name the wheels that the index no longer lists")
def check(where: str, upstream: bool) -> None:
    """Read each file in the vault WHERE once, and name the missing and the damaged ones (exit 12).

    With --upstream, print the wheels that are unlisted (but still served) or gone, and count all.
    """
    store = open_cache()
    folder = store.temporary("vault")
    try:
        folder.mkdir(mode=0o700)
        if upstream:
            from torchkiln.index.package_index import open_index

            pages = open_index(os.environ, store).pages
            states = upstream_states(vault_at(where, os.environ), pages, folder)
            for name, state in states.items():
                if state != "listed":
                    echo(f"{state} {name}")
            counts = Counter(states.values())
            say(", ".join(f"{counts[state]} {state}" for state in ("listed", "unlisted", "gone")))
            return
        count, faults = check_files(vault_at(where, os.environ), folder, say)
    finally:
        remove_tree(folder)
    if faults:
        raise VerificationFailed(
            "\n".join(faults),
            hint=f"delete the damaged files in blobs/sha256, and run: torchkiln vault keep {where} TAG",
        )
    if not count:
        raise NothingSelected(f"{where}: no locks", hint=f"run: torchkiln vault keep {where} TAG")
    echo(f"{count} files, no fault")


@vault.command("drop")
@_where
@images_folder
@click.option("--all", "every", is_flag=True, help="also the locks that are still in --images or --project")
@click.option("--project", type=FOLDER, metavar="DIR", help="instead, earlier locks of the project in DIR")
@click.option("--dry-run", is_flag=True, help="only print what would be removed")
def drop(where: str, images: Path, every: bool, project: Path | None, dry_run: bool) -> None:
    """Remove locks that are no longer in --images from the vault WHERE, and the files that only they need."""
    place, name = vault_at(where, os.environ), None
    if project is None:
        keeping = {vault_tag(load_locked(images, tag)) for tag in (() if every else _locked(images))}
    else:
        lock = demand_lock(project)
        keeping, name = set() if every else {project_tag(lock)}, lock.name
    for tag in drop_locks(place, frozenset(keeping), project=name, dry_run=dry_run):
        echo(tag)


def _locked(images: Path) -> tuple[str, ...]:
    found = tuple(sorted(path.parent.name for path in images.glob("*/lock.json")))
    if not found:
        raise ConfigError(f"{images}: no locks", hint="run: torchkiln lock --all")
    return found
