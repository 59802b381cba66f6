"""`torchkiln plan`: shows the layers of an image before it is built; a group with `toolkit`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.groups import default_group
from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.cli.shared.tables import beside
from torchkiln.cli.toolkit import toolkit
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.load import plan_cell
from torchkiln.plan.plan import to_json


@click.group("plan", cls=default_group("show"))
def plan() -> None:
    """Show the layers of images before they are built. `plan` means `plan show`."""


@plan.command("show")
@cell_selection
@images_folder
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the whole plan as JSON, one line for each of several images",
)
def show(chosen: CellOptions, images: Path, as_json: bool) -> None:
    """Show the layers of the selected images before they are built, with their sizes."""
    cells, grid, known = chosen.cells(must_name=True)
    plans = [plan_cell(cell, grid, known, images=images) for cell in cells]
    for image_plan in plans:
        if not as_json:
            click.echo(table(image_plan, terminal.columns(err=False)))
        else:
            click.echo(json.dumps(to_json(image_plan), indent=2 if len(plans) == 1 else None))


def table(image_plan: ImagePlan, width: int | None = None) -> str:
    """The names of the image, a line for each layer (number, size of its input, content), and the total."""
    sizes = [layer.size for layer in image_plan.layers]
    rows = [
        beside(f"{number:3}  {_megabytes(layer.size):>9} MB  ", layer.title, width)
        for number, layer in enumerate(image_plan.layers, start=1)
    ]
    names = beside("", ", ".join((image_plan.tag, *image_plan.aliases)), width)
    known = sum(size for size in sizes if size is not None)
    more = f", {sizes.count(None)} of unknown size" if None in sizes else ""
    return "\n".join((names, *rows, f"     {known / 1e6:9,.1f} MB  in {len(sizes)} layers{more}"))


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f}"


plan.add_command(toolkit)
