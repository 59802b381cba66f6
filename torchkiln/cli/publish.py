"""`torchkiln publish`: images of a layout into a registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchkiln.cli import console
from torchkiln.cli.chosen import Chosen, selection
from torchkiln.cli.options import layout_option
from torchkiln.cli.registry import history, registry_of
from torchkiln.errors import ConfigError, GateRefused

if TYPE_CHECKING:
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.registry.delivery import How
    from torchkiln.registry.push import Pushed


@click.command("publish", options_metavar="[OPTIONS]")
@selection
@click.option(
    "--to", "target", required=True, metavar="REGISTRY/REPOSITORY", help="registry.example:5000/team/pytorch"
)
@click.option(
    "--tag",
    "names",
    multiple=True,
    metavar="NAME",
    help="under this tag, not TAG; may be repeated",
)
@click.option(
    "--override", metavar="REASON", help="publish what the gate has not cleared; the reason is written down"
)
@layout_option()
@click.option("--mount-from", multiple=True, metavar="REPOSITORY", help="may have layers; same registry")
@click.option("--plain-http", is_flag=True, help="no https, though the registry is not this machine")
@click.option("--jobs", type=click.IntRange(1, 32), default=4, show_default=True, help="uploads side by side")
@click.option("--json", "as_json", is_flag=True, help="one object for each image on stdout")
@click.option("--quiet", "-q", is_flag=True, help="no progress, no summary")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
def publish(
    tags: tuple[str, ...],
    chosen: Chosen,
    target: str,
    names: tuple[str, ...],
    override: str | None,
    output: Path,
    mount_from: tuple[str, ...],
    plain_http: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Push the images TAG (or the cells that --torch and --cuda name) of the layout.

    Layers first, then the manifest, tags last: a push that ends early leaves no tag on half an image. stdout:
    the pushed reference, by digest. The login is Docker's (`docker login REGISTRY`).
    """
    from torchkiln.oci.layout import open_layout
    from torchkiln.registry.push import push
    from torchkiln.registry.reference import parse_repository

    repository = parse_repository(target)
    if chosen.any:
        tags = (*tags, *chosen.tags())
    if not tags:
        raise ConfigError("publish: which image?", hint="name a TAG of the layout, or --torch and --cuda")
    layout = open_layout(output)
    images = [layout.image(tag) for tag in dict.fromkeys(tags)]
    if names and len(images) > 1:
        raise ConfigError(
            "--tag names one image, and several are to be published", hint="publish them one by one"
        )
    reason = _reason(override, images)
    console.say(f"publishing without the gate: {reason}")
    with registry_of(repository, plain_http) as registry:
        registry.check()
        for image in images:
            with console.progress(quiet=quiet) as observer:
                pushed = push(
                    image,
                    registry,
                    repository,
                    tags=names or _own_name(image),
                    watcher=observer,
                    history=history(),
                    mount_from=mount_from,
                    jobs=jobs,
                )
            if not quiet:
                console.say(_summary(image, pushed))
            click.echo(json.dumps(_told(image, pushed, reason)) if as_json else pushed.reference)


def _reason(override: str | None, images: Sequence[ImageOnDisk]) -> str:
    """Why this may be published though no gate has cleared it.

    :raises GateRefused: nobody said so.
    """
    if override is None:
        raise GateRefused(
            "nothing is published that the gate has not cleared, and publish does not ask it yet",
            missing=[(image.ref, "not cleared") for image in images],
            hint='hold its reports against the policy with `gate`; then: publish --override "REASON"',
        )
    if not override.strip():
        raise ConfigError("--override wants a reason", hint='--override "tested by hand on node 7"')
    return override.strip()


def _own_name(image: ImageOnDisk) -> tuple[str, ...]:
    """The image's name in the layout; one without a name is pushed by its digest alone."""
    return () if image.ref == image.manifest else (image.ref,)


def _summary(image: ImageOnDisk, pushed: Pushed) -> str:
    ways: tuple[How, ...] = ("sent", "mounted", "there")
    how = ", ".join(f"{pushed.count(way)} {way}" for way in ways)
    under = ", ".join(pushed.tags) or "no tag"
    return (
        f"{image.ref}: {len(pushed.blobs)} blobs ({how}), {console.size(pushed.bytes_sent)} in "
        f"{pushed.seconds:.1f} s; {pushed.repository}: {under}"
    )


def _told(image: ImageOnDisk, pushed: Pushed, reason: str) -> dict[str, Any]:
    """The contract of `publish --json`."""
    return {
        "image": image.ref,
        "reference": pushed.reference,
        "digest": pushed.digest,
        "repository": str(pushed.repository),
        "tags": list(pushed.tags),
        "bytes_sent": pushed.bytes_sent,
        "sent": pushed.count("sent"),
        "mounted": pushed.count("mounted"),
        "there": pushed.count("there"),
        "blobs": [
            {
                "digest": blob.digest,
                "size": blob.size,
                "how": blob.how,
                "sent": blob.sent,
                "from": blob.source,
            }
            for blob in pushed.blobs
        ],
        "seconds": round(pushed.seconds, 3),
        "override": reason,
    }
