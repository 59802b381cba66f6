"""Defines the arguments that name images and cells, and parses DIR:REF."""

from __future__ import annotations

from pathlib import Path

import click

from torchkiln.cli.shared.completing import TAGS
from torchkiln.matrix.tags import parse_name
from torchkiln.model.layer import split_format
from torchkiln.oci.layout import open_layout
from torchkiln.oci.owned import demand_own_layout

name_argument = click.argument("name", required=False, metavar="[TAG|DIR:REF]", shell_complete=TAGS)
names_argument = click.argument("names", nargs=-1, metavar="[TAG|DIR:REF]...", shell_complete=TAGS)


def split_target(target: str) -> tuple[Path, str | None]:
    """`dist/layout:tag` as folder and ref; the name of a folder may contain a colon."""
    if Path(target).is_dir():
        return Path(target), None
    folder, colon, ref = target.partition(":")
    while colon and not Path(folder).is_dir():
        more, colon, ref = ref.partition(":")
        folder += ":" + more
    return (Path(folder), ref) if colon else (Path(target), None)


def is_layout(folder: Path) -> bool:
    """Whether *folder* looks like a layout: it has at least one of the files of a layout."""
    return any((folder / name).exists() for name in ("oci-layout", "index.json", "blobs"))


def tag_named(name: str) -> str:
    """*name*; if it is DIR:REF or DIR, the tag of that image, from its name in the layout or from its label.

    :raises KilnError: there is no such image.
    """
    folder, ref = split_target(name)
    if not folder.is_dir() or not (ref is not None or is_layout(folder)):
        return name
    demand_own_layout(folder)
    image = open_layout(folder).image(ref)
    if parse_name(split_format(image.ref)[0]):
        return split_format(image.ref)[0]
    labels = (image.config.get("config") or {}).get("Labels") or {}
    return str(labels.get("org.opencontainers.image.version") or image.ref)
