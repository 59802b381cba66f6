"""Pushes an image without the gate, for `push` and `project push`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchkiln.cli.shared import console, pushed_output
from torchkiln.cli.shared.image_names import NamedImage
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.publishing.licence import demand_licence
from torchkiln.registry.history import History
from torchkiln.registry.push import Pushed, PushOptions
from torchkiln.registry.push import push as push_image
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry

PREFIX = "unproven-"  # of the default tag; tags of `publish` never begin with it


def image_to_push(named: NamedImage, tags: Sequence[str], *, licence_confirmed: bool) -> ImageOnDisk:
    """The image *named*.

    :raises ConfigError: there is no such image, or neither *tags* nor the layout have a name for it.
    :raises GateRefused: its licence needs a confirmation, and *licence_confirmed* is False.
    """
    image = open_layout(named.layout).image(named.ref)
    if not tags and ":" in image.ref:
        raise ConfigError(
            f"{image.ref}: no name in {named.layout}",
            hint="name it in the registry: --tag NAME",
        )
    demand_licence(image, confirmed=licence_confirmed)
    return image


def default_tags(image: ImageOnDisk) -> tuple[str, ...]:
    """The tags of *image* in a registry if none are named."""
    return (f"{PREFIX}{image.ref}",)


def push_unproven(
    image: ImageOnDisk,
    registry: Registry,
    repository: Repository,
    tags: Sequence[str],
    *,
    jobs: int,
    quiet: bool,
) -> Pushed:
    """Push *image* under *tags*, with its progress."""
    with console.progress(quiet=quiet) as observer:
        options = PushOptions(observer=observer, history=History(console.open_cache(quiet=quiet)), jobs=jobs)
        return push_image(image, registry, repository, options, tags=tags)


def say_what_moves(
    image: ImageOnDisk, registry: Registry, repository: Repository, tags: Sequence[str]
) -> None:
    """Print the digest of each other image that has one of *tags*."""
    reading = RepositoryReader(registry, repository)
    for tag in tags:
        present = reading.digest(tag)
        if present not in (None, image.manifest):
            console.say(f"{repository}:{tag} moves from {present} to the pushed image")


def say_pushed(ref: str, pushed: Pushed, *, quiet: bool) -> None:
    """Print a warning, and unless *quiet* a summary of the push of *ref*."""
    console.say(f"warning: {pushed.reference} is unproven: no gate has cleared it")
    if not quiet:
        console.say(pushed_output.summary(ref, pushed, pushed.tags))


def pushed_json(ref: str, pushed: Pushed) -> dict[str, Any]:
    """The object that --json prints for the image *ref*."""
    return pushed_output.to_json(ref, pushed, pushed.tags) | {"proven": False}
