"""`torchkiln push`: pushes images to a registry without the gate, as unproven."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.image_names import named_images
from torchkiln.cli.shared.options import Upload, layout_option, upload_options
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import names_argument
from torchkiln.cli.shared.terminal import print_error
from torchkiln.cli.shared.unproven import (
    default_tags,
    image_to_push,
    push_unproven,
    pushed_json,
    say_pushed,
    say_what_moves,
)
from torchkiln.errors import ConfigError, KilnError
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publishing.names import ImageTags, demand_movable
from torchkiln.registry.connect import open_registry
from torchkiln.registry.push import Pushed
from torchkiln.registry.reference import parse_repository

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
    repository = parse_repository(target)
    images = named_images(names, output, chosen)
    if not images:
        raise ConfigError("push: no image given", hint="pass a TAG of the layout, or --torch and --cuda")
    if tags and len(images) > 1:
        raise ConfigError(
            f"--tag applies to one image, and {len(images)} are selected", hint="push them one at a time"
        )
    demand_movable(ImageTags(dated=None, moving=tags))
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

    read = partial(image_to_push, tags=tags, licence_confirmed=upload.licence_confirmed)
    opened = [attempt(named.ref, partial(read, named)) for named in images]
    with open_registry(repository, os.environ, plain_http=upload.plain_http) as registry:
        registry.check()

        def send(image: ImageOnDisk) -> Pushed:
            named = tags or default_tags(image)
            say_what_moves(image, registry, repository, named)
            return push_unproven(image, registry, repository, named, jobs=upload.jobs, quiet=upload.quiet)

        for image in filter(None, opened):
            pushed = attempt(image.ref, partial(send, image))
            if pushed is None:
                continue
            say_pushed(image.ref, pushed, quiet=upload.quiet)
            click.echo(json.dumps(pushed_json(image.ref, pushed)) if upload.as_json else pushed.reference)
    if failures:
        raise console.worst(failures, len(images), "images")
