"""Finds the images that a command line names: TAG, alias, digest, DIR:REF, or a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.targets import is_layout, split_target
from torchkiln.errors import ConfigError, KilnError
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import find_cell, parse_name, preferred_name, tag_of
from torchkiln.model.layer import split_format
from torchkiln.oci.layout import open_layout
from torchkiln.oci.owned import demand_own_layout


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedImage:
    """An image in a layout. It may not exist."""

    layout: Path
    ref: str | None  # its tag or another name, or its digest; None: the only image of the layout


def locate(name: str | None, layout: Path, chosen: CellOptions, *, owned: bool = True) -> NamedImage:
    """Find the image *name*: DIR:REF, DIR, or a tag, alias or digest in *layout*; None is its only image.

    For an alias or a digest, the result has the image's tag instead, if the layout has that tag. The image
    and the layout need not exist: the caller opens the image, or looks elsewhere.

    :param owned: False: accept a layout that other users can change; the caller verifies every byte used.
    :raises ConfigError: *owned*, and other users can change the layout in *name*.
    """
    ref = name
    if name is not None:
        folder, inner = split_target(name)
        if folder.is_dir() and (inner is not None or is_layout(folder)):
            if owned:
                demand_own_layout(folder)
            layout, ref = folder, inner
    names = _names_in(layout)
    if ref is None:
        images = set(names.values())
        return NamedImage(layout=layout, ref=preferred_name(list(names)) if len(images) == 1 else None)
    if ref not in names and not ref.startswith("sha256:"):
        ref = _tag_by_alias(ref, chosen) or ref
    if parse_name(split_format(ref)[0]):
        return NamedImage(layout=layout, ref=ref)
    digest = names.get(ref, ref)
    own = [each for each, found in names.items() if found == digest and parse_name(split_format(each)[0])]
    return NamedImage(layout=layout, ref=preferred_name(own) or ref)


def named_images(names: Sequence[str], layout: Path, chosen: CellOptions) -> tuple[NamedImage, ...]:
    """The images that *names* and the selection name, each once.

    :raises KilnError: as `CellOptions.tags`.
    """
    found = [locate(name, layout, chosen) for name in names]
    if chosen.any:
        found += [NamedImage(layout=layout, ref=tag) for tag in chosen.tags()]
    return tuple(dict.fromkeys(found))


def named_image(name: str | None, layout: Path, chosen: CellOptions, *, command: str) -> NamedImage:
    """The one image that *name* or the selection names.

    :param command: the command that takes one image, for the errors.
    :raises ConfigError: both name an image, or neither, or the selection names several.
    :raises Unresolvable: the selected cell cannot be built.
    """
    if (name is not None) == chosen.any:
        raise ConfigError(
            f"{command} takes one image: a TAG, or --torch and --cuda",
            hint=f"see: torchkiln {command} --help",
        )
    if name is not None:
        return locate(name, layout, chosen)
    return NamedImage(layout=layout, ref=chosen.tag(command))


def one_layout(images: Sequence[NamedImage], command: str) -> tuple[Path, tuple[str, ...]]:
    """The layout of *images*, and their refs.

    :raises ConfigError: the images are in several layouts; or no name is given, and the layout has several
        images.
    """
    layouts = dict.fromkeys(image.layout for image in images)
    if len(layouts) > 1:
        raise ConfigError(
            f"{command}: the images are in several layouts: {', '.join(map(str, layouts))}",
            hint=f"run torchkiln {command} once for each layout",
        )
    layout = next(iter(layouts))
    return layout, tuple(image.ref or open_layout(layout).image().ref for image in images)


def _names_in(layout: Path) -> dict[str, str]:
    """The names in *layout* with their digests; none if it cannot be read: opening the image reports that."""
    if not layout.is_dir():
        return {}
    try:
        return dict(open_layout(layout).refs())
    except (KilnError, OSError):
        return {}


def _tag_by_alias(name: str, chosen: CellOptions) -> str | None:
    """The tag of the cell with the alias *name*; None if there is none, or no matrix."""
    try:
        matrix, facts = chosen.grid()
    except KilnError:
        return None
    cell = find_cell(name, matrix, facts)
    return tag_of(resolve(cell, matrix, facts)) if cell else None
