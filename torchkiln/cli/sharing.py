"""`torchkiln sharing`: which layers which images share, in a registry and on a host's disk."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from torchkiln.cli.shared import sharing_tables
from torchkiln.cli.shared.console import say, size
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.cli.shared.sharing_json import to_json
from torchkiln.compare.sharing import Stack, share
from torchkiln.compare.sharing_svg import picture as draw
from torchkiln.compare.stacks import names_in, stacks_in, stacks_of
from torchkiln.errors import NothingSelected
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.oci.layout import open_layout
from torchkiln.plan.load import plan_locked
from torchkiln.util.files import write_atomic


@click.command("sharing")
@selection
@images_folder
@layout_option(
    "count the images of this OCI layout as they were built, not what the locks record", default=None
)
@click.option(
    "--svg", "picture", type=click.Path(path_type=Path, dir_okay=False), help="write a picture of it there"
)
@click.option("--json", "as_json", is_flag=True, help="every figure as one object on stdout")
def sharing(chosen: Chosen, images: Path, output: Path | None, picture: Path | None, as_json: bool) -> None:
    """Show which layers which images share, and what that saves in a registry and on a host's disk.

    Without a selection: every cell that has a lock, or every image of the layout. A registry keeps a blob
    once, wherever it stands in an image; a host's engine shares an unpacked layer only where all layers below
    it are the same. Manifests and configurations, a few kilobytes each, are not counted.
    """
    found = share(_of_locks(chosen, images) if output is None else _of_layout(chosen, output))
    for title, count in Counter(title for stack in found.stacks for title in stack.unrecorded).items():
        say(f"not known, for no lock records it: {title} (in {count} of {len(found.stacks)} images)")
    if picture:
        write_atomic(picture, draw(found).encode())
    if as_json:
        click.echo(json.dumps(to_json(found), indent=2))
    else:
        sharing_tables.show(found)


def _of_locks(chosen: Chosen, images: Path) -> tuple[Stack, ...]:
    """What the locks of the chosen cells record.

    :raises NothingSelected: none of them has one.
    :raises Stale: a lock is broken; or one cell alone was chosen, and has none.
    """
    matrix, facts = chosen.grid()
    tags = [tag_of(one) for one in _answers(chosen)]
    locked = [tag for tag in tags if (images / tag / "lock.json").exists() or len(tags) == 1]
    if not locked:
        raise NothingSelected(f"no chosen cell has a lock in {images}", hint="run: torchkiln lock --all")
    locks = [load_locked(images, tag) for tag in locked]
    unseen = [lock for lock in locks if lock.by_record]
    if unseen and len(unseen) < len(locks):
        say(f"{len(unseen)} cells are locked by public record, which tells no sizes: they are not counted")
        locks = [lock for lock in locks if not lock.by_record]
    if chosen.any and len(locked) < len(tags):
        say(f"{len(tags) - len(locked)} of the {len(tags)} chosen cells have no lock, and are not counted")
    return stacks_of([plan_locked(lock, matrix, facts) for lock in locks])


def _of_layout(chosen: Chosen, output: Path) -> tuple[Stack, ...]:
    """The images of the layout *output*; where cells are chosen, theirs.

    :raises ConfigError: there is no such folder.
    :raises NothingSelected: it holds no such image.
    :raises VerificationFailed: it is no layout, or damaged.
    """
    layout = open_layout(output)
    names = names_in(layout, {tag_of(one) for one in _answers(chosen)} if chosen.any else None)
    if not names:
        what = "none of the chosen images" if chosen.any else "no image"
        raise NothingSelected(f"{output} holds {what}", hint="`build --output` puts images there")
    return stacks_in(layout, names, lambda count, total: say(f"reading {count} layers, {size(total)}"))


def _answers(chosen: Chosen) -> list[Resolution]:
    """Of the chosen cells, or of all, those that can be built.

    :raises Unresolvable: one is chosen, and cannot.
    """
    matrix, facts = chosen.grid()
    cells = chosen.cells()[0] if chosen.any else all_cells(matrix)
    found = [resolve(cell, matrix, facts) for cell in cells]
    if len(found) == 1:
        require_buildable(found[0])
    return [one for one in found if one.build is not None]
