"""`torchkiln diff`: compares two images, each in a layout or in a Docker engine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchkiln.cli.shared import diff_output
from torchkiln.cli.shared.console import progress
from torchkiln.cli.shared.image_names import locate
from torchkiln.cli.shared.options import json_option, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import names_argument
from torchkiln.compare.images import (
    ImageReader,
    InEngine,
    InLayout,
    layered_images,
    same_digest,
)
from torchkiln.compare.layers import contrast
from torchkiln.docker.daemon import find_engine
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import open_layout
from torchkiln.runtimes.engine_images import DOCKER


@click.command("diff")
@names_argument
@selection
@layout_option("the OCI layout that has the tags and digests")
@click.option("--exit-code", is_flag=True, help="exit with 1 if the images differ")
@json_option
def diff(
    names: tuple[str, ...],
    chosen: CellOptions,
    output: Path,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Compare the packages, settings and layers of the images A and B.

    A and B are tags, aliases or digests of the layout, DIR:REF, or docker:NAME for an image in the Docker
    engine. The images of a selection come after the named ones.

    If both digests are the same, no layer is read, and the numbers in --json are null.

    Exits with 0 even if the images differ, unless --exit-code is used.
    """
    pair = (*names, *(chosen.tags() if chosen.any else ()))
    if len(pair) != 2:
        raise ConfigError(f"diff compares two images, not {len(pair)}", hint="see: torchkiln diff --help")
    a, b = pair
    sources = _source(a, output, chosen), _source(b, output, chosen)
    if digest := same_digest(*sources):
        show = diff_output.same_json if as_json else diff_output.same_text
        click.echo(show(a, b, digest))
        return
    same = _by_layers(a, b, *sources, as_json)
    sys.exit(int(exit_code and not same))


def _by_layers(a: str, b: str, left: ImageReader, right: ImageReader, as_json: bool) -> bool:
    """Print the differences; returns whether there are none."""
    with progress(quiet=False) as observer:
        images = layered_images(left, right, observer)
    found = contrast(*images)
    names = (f"{a} ({images[0].digest[:19]})", f"{b} ({images[1].digest[:19]})")
    click.echo(
        diff_output.contrast_json(a, b, *images, found)
        if as_json
        else diff_output.contrast_text(*names, found)
    )
    return found.same


def _source(name: str, output: Path, chosen: CellOptions) -> ImageReader:
    """The layout or the engine that has the image *name*.

    :raises ConfigError: the layout has no such image.
    :raises ToolMissing: the engine does not answer.
    """
    if name.startswith(DOCKER):
        return InEngine(name.removeprefix(DOCKER), find_engine(builds=False))
    image = locate(name, output, chosen)
    return InLayout(open_layout(image.layout).image(image.ref))
