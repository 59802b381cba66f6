"""`torchkiln plan`: the layers and the config that an image will have, before any of it is built."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.load import plan_cell
from torchkiln.plan.plan import to_json


@click.command("plan")
@selection
@images_folder
@click.option("--json", "as_json", is_flag=True, help="one object a plan on stdout, one a line if several")
def plan(
    chosen: Chosen,
    images: Path,
    as_json: bool,
) -> None:
    """Show the layers of an image with their sizes, or the whole plan."""
    cells, grid, known = chosen.cells(must_name=True)
    plans = [plan_cell(cell, grid, known, images=images) for cell in cells]
    for one in plans:
        if not as_json:
            click.echo(table(one))
        else:
            click.echo(json.dumps(to_json(one), indent=2 if len(plans) == 1 else None))


def table(plan: ImagePlan) -> str:
    """The layers of *plan* from the bottom up: number, megabytes that go in, what is in it."""
    sizes = [layer.size for layer in plan.layers]
    rows = [
        f"{number:3}  {'?' if size is None else format(size / 1e6, ',.1f'):>9} MB  {layer.title}"
        for number, (size, layer) in enumerate(zip(sizes, plan.layers, strict=True), start=1)
    ]
    names = ", ".join((plan.tag, *plan.aliases))
    known = sum(size for size in sizes if size is not None)
    more = f", {sizes.count(None)} of unknown size" if None in sizes else ""
    return "\n".join((names, *rows, f"     {known / 1e6:9,.1f} MB  in {len(sizes)} layers{more}"))
