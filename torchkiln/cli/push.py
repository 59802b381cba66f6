"""`torchkiln push`: pushes images to a registry without the gate, as unproven."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from torchkiln.cli.shared import console, unproven
from torchkiln.cli.shared.image_names import named_images
from torchkiln.cli.shared.options import PushTo, Upload, layout_option, upload_options
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import names_argument
from torchkiln.cli.shared.terminal import print_error
from torchkiln.errors import ConfigError, KilnError

T = TypeVar("T")


@click.command("push", options_metavar="[OPTIONS]")
@selection
@click.option(
    "--to",
    "target",
    required=True,
    metavar="REGISTRY/REPOSITORY",
    help="where to push: registry.example:5000/me/pytorch",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME",
    help="push under this tag; repeatable  [default: unproven-TAG]",
)
@layout_option()
@upload_options
@names_argument
def push(
    names: tuple[str, ...],
    chosen: CellOptions,
    target: str,
    tags: tuple[str, ...],
    output: Path,
    upload: Upload,
) -> None:
    """Push the images TAG, or those of the selected cells, without tests: for your own use.

    The gate does not check the image, and nothing is attached: `verify` refuses it, and `ls` warns of it. The
    tags of `publish` stay where they are unless --tag names one. Prints each reference with its digest.
    """
    to = PushTo(
        target=target,
        tags=tags,
        plain_http=upload.plain_http,
        licence_confirmed=upload.licence_confirmed,
        jobs=upload.jobs,
    )
    with closing(unproven.pushes(to, quiet=upload.quiet)) as pushes:
        images = named_images(names, output, chosen)
        if not images:
            raise ConfigError("push: no image given", hint="pass a TAG of the layout, or --torch and --cuda")
        if tags and len(images) > 1:
            raise ConfigError(
                f"--tag applies to one image, and {len(images)} are selected", hint="push them one at a time"
            )
        failures: list[KilnError] = []

        def attempt(name: str | None, step: Callable[[], T]) -> T | None:
            try:
                return step()
            except KilnError as error:
                if len(images) == 1:
                    raise
                print_error(f"{name}: {error.message}", error.hint)
                failures.append(error)
                return None

        opened = [attempt(each.ref, partial(pushes.image, each.layout, each.ref)) for each in images]
        pushes.connect()
        for image in filter(None, opened):
            if pushed := attempt(image.ref, partial(pushes.push, image)):
                found = unproven.pushed_json(image.ref, pushed)
                click.echo(json.dumps(found) if upload.as_json else pushed.reference)
    if failures:
        raise console.worst(failures, len(images), "images")
