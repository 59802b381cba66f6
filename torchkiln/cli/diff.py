"""`torchkiln diff`: compares two images, each in a layout or in a Docker engine."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from torchkiln.cli.shared import diff_output
from torchkiln.cli.shared.console import say
from torchkiln.cli.shared.options import FILE, json_option, layout_option
from torchkiln.compare import allowed
from torchkiln.compare.files import differences
from torchkiln.compare.images import ImageReader, InEngine, InLayout, layered_images, whole_images
from torchkiln.compare.layers import contrast
from torchkiln.docker.daemon import find_engine
from torchkiln.oci.layout import open_layout
from torchkiln.runtimes.engine_images import DOCKER


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@layout_option("the OCI layout that has the tags and digests")
@click.option("--files", is_flag=True, help="compare every file and every setting")
@click.option("--allow", type=FILE, help="with --files: a list of allowed differences, each with a reason")
@click.option("--exit-code", is_flag=True, help="exit with 1 if the images differ")
@json_option
def diff(
    a: str, b: str, output: Path, files: bool, allow: Path | None, exit_code: bool, as_json: bool
) -> None:
    """Compare the packages, settings and layers of the images A and B.

    A and B are tags or digests of the layout, or docker:NAME for an image in the Docker engine.
    --files compares type, mode, owner, content, link target, device and extended attributes of every path.
    torchkiln/data/parity.yaml is an example of an --allow list, and documents its format.

    Exits with 0 even if the images differ, unless --exit-code is used.
    """
    if allow and not files:
        raise click.UsageError("--allow needs --files")
    sources = _source(a, output), _source(b, output)
    same = _by_files(a, b, *sources, allow, as_json) if files else _by_layers(a, b, *sources, as_json)
    sys.exit(int(exit_code and not same))


def _by_layers(a: str, b: str, left: ImageReader, right: ImageReader, as_json: bool) -> bool:
    """Print the differences; returns whether there are none."""
    images = layered_images(left, right)
    found = contrast(*images)
    names = (f"{a} ({images[0].digest[:19]})", f"{b} ({images[1].digest[:19]})")
    click.echo(
        diff_output.contrast_json(a, b, *images, found)
        if as_json
        else diff_output.contrast_text(*names, found)
    )
    return found.same


def _by_files(
    a: str, b: str, left: ImageReader, right: ImageReader, allow: Path | None, as_json: bool
) -> bool:
    """Print the differences; returns whether all are allowed."""
    allowances = allowed.read(allow) if allow else ()
    images = whole_images(left, right, partial(allowed.compares_lines, entries=allowances))
    found = allowed.sift(differences(*images), allowances)
    if as_json:
        click.echo(diff_output.sifted_json(a, b, *images, found))
    else:
        for line in diff_output.sifted_text(found):
            click.echo(line)
        paths = len(images[0].tree.keys() | images[1].tree.keys())
        say(f"{paths} paths: {len(found.left)} differences, {len(found.allowed)} more are allowed")
    for entry in found.idle:
        say(f"{allow}: not needed: {entry.what} at {entry.at.pattern}")
    return not found.left


def _source(name: str, output: Path) -> ImageReader:
    """The layout or the engine that has the image *name*.

    :raises ConfigError: the layout has no such image.
    :raises ToolMissing: the engine does not answer.
    """
    if name.startswith(DOCKER):
        return InEngine(name.removeprefix(DOCKER), find_engine(builds=False))
    return InLayout(open_layout(output).image(name))
