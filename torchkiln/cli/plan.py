"""`torchkiln plan`: shows the layers and the configuration of an image before it is built."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.load import plan_cell
from torchkiln.plan.plan import to_json


@click.command("plan")
@selection
@images_folder
@click.option(
    "--json", "as_json", is_flag=True, help="print the whole plan as JSON; several: a line for each"
)
def plan(chosen: CellOptions, images: Path, as_json: bool) -> None:
    """Show the layers of the selected images before they are built, with their sizes."""
    cells, grid, known = chosen.cells(must_name=True)
    plans = [plan_cell(cell, grid, known, images=images) for cell in cells]
    for image_plan in plans:
        if not as_json:
            click.echo(table(image_plan))
        else:
            click.echo(json.dumps(to_json(image_plan), indent=2 if len(plans) == 1 else None))


def table(plan: ImagePlan) -> str:
    """The layers of *plan* from the bottom up: number, size of the input, content."""
    sizes = [layer.size for layer in plan.layers]
    rows = [
        f"{number:3}  {'?' if size is None else format(size / 1e6, ',.1f'):>9} MB  {layer.title}"
        for number, (size, layer) in enumerate(zip(sizes, plan.layers, strict=True), start=1)
    ]
    names = ", ".join((plan.tag, *plan.aliases))
    known = sum(size for size in sizes if size is not None)
    more = f", {sizes.count(None)} of unknown size" if None in sizes else ""
    return "\n".join((names, *rows, f"     {known / 1e6:9,.1f} MB  in {len(sizes)} layers{more}"))
