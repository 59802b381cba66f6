"""`torchkiln plan sharing`: shows which layers images share, in a registry and on a host's disk."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from torchkiln.cli.shared import sharing_output
from torchkiln.cli.shared.console import progress, say, size
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.compare.sharing import Stack, share
from torchkiln.compare.stacks import names_in, stacks_in, stacks_of
from torchkiln.errors import NothingSelected
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.oci.layout import open_layout
from torchkiln.plan.load import plan_locked


@click.command("sharing")
@cell_selection
@images_folder
@layout_option(
    "count the images of this OCI layout instead of the layers that the locks record", default=None
)
@click.option("--json", "as_json", is_flag=True, help="print every size as JSON")
def sharing(chosen: CellOptions, images: Path, output: Path | None, as_json: bool) -> None:
    """Show which layers images share, and the space that this saves in a registry and on a host's disk.

    The default is every cell that has a lock, or every image of the layout. A registry stores each blob once;
    an engine shares an unpacked layer only if all layers below it are the same. Manifests and configurations,
    a few kilobytes each, are not counted.
    """
    found = share(_of_locks(chosen, images) if output is None else _of_layout(chosen, output))
    for title, count in Counter(title for stack in found.stacks for title in stack.unrecorded).items():
        say(f"unknown size, no lock records it: {title} (in {count} of {len(found.stacks)} images)")
    if as_json:
        click.echo(json.dumps(sharing_output.to_json(found), indent=2))
    else:
        sharing_output.show(found)


def _of_locks(chosen: CellOptions, images: Path) -> tuple[Stack, ...]:
    """The layers that the locks of the selected cells record.

    :raises NothingSelected: none of the cells has a lock.
    :raises Stale: a lock is broken; or one cell alone is selected, and has no lock.
    """
    matrix, facts = chosen.grid()
    tags = [tag_of(resolution) for resolution in _buildable(chosen)]
    locked = [tag for tag in tags if (images / tag / "lock.json").exists() or len(tags) == 1]
    if not locked:
        raise NothingSelected(f"no selected cell has a lock in {images}", hint="run: torchkiln lock --all")
    locks = [load_locked(images, tag) for tag in locked]
    without_sizes = [lock for lock in locks if lock.by_record]
    if without_sizes and len(without_sizes) < len(locks):
        say(f"{len(without_sizes)} cells are not counted: locked by public record, which has no sizes")
        locks = [lock for lock in locks if not lock.by_record]
    if chosen.any and len(locked) < len(tags):
        say(f"{len(tags) - len(locked)} of the {len(tags)} selected cells are not counted: they have no lock")
    return stacks_of([plan_locked(lock, matrix, facts) for lock in locks])


def _of_layout(chosen: CellOptions, output: Path) -> tuple[Stack, ...]:
    """The images of the layout *output*; if cells are selected, only theirs.

    :raises ConfigError: there is no such directory.
    :raises NothingSelected: the layout has no such image.
    :raises VerificationFailed: the folder is not a layout, or damaged.
    """
    layout = open_layout(output)
    names = names_in(layout, {tag_of(each) for each in _buildable(chosen)} if chosen.any else None)
    if not names:
        what = "none of the selected images" if chosen.any else "no image"
        raise NothingSelected(f"{output} has {what}", hint=f"run: torchkiln build TAG --output {output}")
    with progress(quiet=False) as observer:
        return stacks_in(
            layout,
            names,
            observer,
            begin=lambda count, total: say(f"reading {count} layers, {size(total)}"),
        )


def _buildable(chosen: CellOptions) -> list[Resolution]:
    """The selected cells, by default all, that can be built.

    :raises Unresolvable: one cell is selected, and it cannot be built.
    """
    matrix, facts = chosen.grid()
    cells = chosen.cells()[0] if chosen.any else all_cells(matrix)
    found = [resolve(cell, matrix, facts) for cell in cells]
    if len(found) == 1:
        require_buildable(found[0])
    return [resolution for resolution in found if resolution.build is not None]
