"""`torchkiln refresh`: locks the present packages of the operating systems; wheels stay as they are."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from torchkiln.cli.render import write_rendered
from torchkiln.cli.shared.console import open_cache, say
from torchkiln.cli.shared.lock_output import LockOutput
from torchkiln.cli.shared.options import images_folder, json_option, matrix_option, mirror_option
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import NothingSelected
from torchkiln.locks import systems
from torchkiln.locks.lock import load_locked, save
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.operating_system import operating_system


@click.command("refresh")
@click.option(
    "--os", "os_names", multiple=True, metavar="NAME", help="only this operating system; repeatable"
)
@matrix_option
@images_folder
@mirror_option
@json_option
def refresh(os_names: tuple[str, ...], matrix_file: Path, images: Path, as_json: bool) -> None:
    """Move all locks to the present packages of their OS, and render their files again.

    One new base is made for each OS. Wheels, archives and their layers stay: only the base, the tools and the
    uppermost layer of an image change. Prints the tags whose locks changed.
    """
    known = facts.load(matrix_file)
    grid, store = matrix.read(matrix_file, known), open_cache()
    locks = [load_locked(images, path.parent.name) for path in sorted(images.glob("*/lock.json"))]
    chosen = [locked for locked in locks if not os_names or locked.base.os in os_names]
    if not chosen:
        of = f" of {', '.join(operating_system(name).name for name in os_names)}" if os_names else ""
        raise NothingSelected(f"{images}: no locks{of}", hint="run: torchkiln lock --all")
    for locked in chosen:  # a folder that cannot be written is found now, not after the base was made
        tempfile.TemporaryFile(dir=images / tag_of(locked.resolution)).close()
    pythons = StandalonePythons(store=store, environ=os.environ, locate=grid.locate)
    moving = systems.Systems(
        images, store, environ=os.environ, report=LockOutput().reporting, pythons=pythons, upgrade=True
    )
    moved = [found for found in systems.refresh(chosen, moving, known) if found.after != found.before]
    for found in moved:
        save(images, found.after)
    write_rendered(tuple(found.after.resolution.cell for found in moved), grid, known, images)
    changes = {(found.after.base.os, change): None for found in moved for change in found.changes}
    for name, change in sorted(changes):
        say(f"{name}: {change}")
    for found in moved:
        tag = tag_of(found.after.resolution)
        click.echo(json.dumps({"tag": tag, "changes": list(found.changes)}) if as_json else tag)
