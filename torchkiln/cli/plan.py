"""`torchkiln plan`: the layers and the config that an image will have, before any of it is built."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.options import images_folder, selection
from torchkiln.nouns import ImagePlan


@click.command("plan")
@selection
@images_folder
@click.option("--json", "as_json", is_flag=True, help="one object a plan on stdout, one a line if several")
def plan(
    torch: tuple[str, ...],
    cuda: tuple[str, ...],
    flavor: tuple[str, ...],
    os_names: tuple[str, ...],
    every: bool,
    matrix_file: Path,
    images: Path,
    as_json: bool,
) -> None:
    """Show the layers of an image with their sizes, or the whole plan."""
    from torchkiln import facts, matrix
    from torchkiln.plan import to_json
    from torchkiln.planning import plan_cell
    from torchkiln.select import Selection, select

    known = facts.load()
    grid = matrix.read(matrix_file, known)
    asked = Selection(torch=torch, cuda=cuda, flavor=flavor, os=os_names, every=every)
    plans = [plan_cell(cell, grid, known, images=images) for cell in select(asked, grid, must_name=True)]
    for one in plans:
        if not as_json:
            click.echo(table(one))
        else:
            click.echo(json.dumps(to_json(one), indent=2 if len(plans) == 1 else None))


def table(plan: ImagePlan) -> str:
    """The layers of *plan* from the bottom up: number, megabytes that go in, what is in it."""
    from torchkiln.plan import layer_bytes

    sizes = [layer_bytes(layer, plan.locked) for layer in plan.layers]
    rows = [
        f"{number:3}  {size / 1e6:9,.1f} MB  {layer.title}"
        for number, (size, layer) in enumerate(zip(sizes, plan.layers, strict=True), start=1)
    ]
    names = ", ".join((plan.tag, *plan.aliases))
    return "\n".join((names, *rows, f"     {sum(sizes) / 1e6:9,.1f} MB  in {len(sizes)} layers"))
