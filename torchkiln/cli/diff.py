"""`torchkiln diff`: compares two images, each in a layout or in a Docker engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from torchkiln.cli.shared import diff_output
from torchkiln.cli.shared.console import progress, say
from torchkiln.cli.shared.image_names import locate
from torchkiln.cli.shared.options import FILE, json_option, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import names_argument
from torchkiln.compare import allowed
from torchkiln.compare.files import differences
from torchkiln.compare.images import (
    ImageReader,
    InEngine,
    InLayout,
    layered_images,
    same_digest,
    whole_images,
)
from torchkiln.compare.layers import contrast
from torchkiln.compare.thin import expected
from torchkiln.docker.daemon import find_engine
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import open_layout
from torchkiln.runtimes.engine_images import DOCKER


@click.command("diff")
@names_argument
@selection
@layout_option("the OCI layout that has the tags and digests")
@click.option("--files", is_flag=True, help="compare every file and every setting")
@click.option("--allow", type=FILE, help="with --files: a list of allowed differences, each with a reason")
@click.option("--exit-code", is_flag=True, help="exit with 1 if the images differ")
@json_option
def diff(
    names: tuple[str, ...],
    chosen: CellOptions,
    output: Path,
    files: bool,
    allow: Path | None,
    exit_code: bool,
    as_json: bool,
) -> None:
    """Compare the packages, settings and layers of the images A and B.

    A and B are tags, aliases or digests of the layout, DIR:REF, or docker:NAME for an image in the Docker
    engine. The images of a selection come after the named ones.
    --files compares type, mode, owner, content, link target, device and extended attributes of every path.
    torchkiln/data/parity.yaml is an example of an --allow list, and documents its format.

    If both digests are the same, no layer is read, and the numbers in --json are null.

    Exits with 0 even if the images differ, unless --exit-code is used.
    """
    if allow and not files:
        raise click.UsageError("--allow requires --files")
    pair = (*names, *(chosen.tags() if chosen.any else ()))
    if len(pair) != 2:
        raise ConfigError(f"diff compares two images, not {len(pair)}", hint="see: torchkiln diff --help")
    a, b = pair
    allowances = allowed.read(allow) if allow else ()
    sources = _source(a, output, chosen), _source(b, output, chosen)
    digest = same_digest(*sources)
    if not files:
        if digest:
            show = diff_output.same_json if as_json else diff_output.same_text
            click.echo(show(a, b, digest))
            return
        same = _by_layers(a, b, *sources, as_json)
        sys.exit(int(exit_code and not same))
    if digest:
        say(f"both are {digest}: no differences")
        found = allowed.sift((), allowances)
        if as_json:
            click.echo(diff_output.sifted_json((a, None), (b, None), found))
    else:
        found = _by_files(a, b, *sources, allowances, as_json)
    for entry in found.idle:
        say(f"{allow}: not needed: {entry.what} at {entry.at.pattern}")
    sys.exit(int(exit_code and bool(found.left)))


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


def _by_files(
    a: str,
    b: str,
    left: ImageReader,
    right: ImageReader,
    allowances: Sequence[allowed.AllowedDifference],
    as_json: bool,
) -> allowed.Sifted:
    """Print and return the differences."""
    with progress(quiet=False) as observer:
        wanted = partial(allowed.compares_lines, entries=allowances)
        images = whole_images(left, right, wanted, observer)
    of_thin_images = expected(*images)
    found = allowed.sift(differences(*images), (*allowances, *of_thin_images))
    found = replace(found, idle=tuple(entry for entry in found.idle if entry in allowances))
    if as_json:
        click.echo(diff_output.sifted_json((a, len(images[0].tree)), (b, len(images[1].tree)), found))
    else:
        for line in (*diff_output.sifted_text(found), *diff_output.expected_text(found, of_thin_images)):
            click.echo(line)
        paths = len(images[0].tree.keys() | images[1].tree.keys())
        say(f"{paths} paths: {len(found.left)} differences, {len(found.allowed)} more are allowed")
    return found


def _source(name: str, output: Path, chosen: CellOptions) -> ImageReader:
    """The layout or the engine that has the image *name*.

    :raises ConfigError: the layout has no such image.
    :raises ToolMissing: the engine does not answer.
    """
    if name.startswith(DOCKER):
        return InEngine(name.removeprefix(DOCKER), find_engine(builds=False))
    image = locate(name, output, chosen)
    return InLayout(open_layout(image.layout).image(image.ref))
