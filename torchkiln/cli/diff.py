"""`torchkiln diff`: compares two images, each in a layout or in a Docker engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.console import progress, size
from torchkiln.cli.shared.image_names import locate
from torchkiln.cli.shared.options import json_option, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.tables import laid_out, shortened
from torchkiln.cli.shared.targets import names_argument
from torchkiln.compare.images import ImageReader, InEngine, InLayout, layered_images, same_digest
from torchkiln.compare.layers import Contrast, LayerSet, contrast
from torchkiln.docker.daemon import find_engine
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import open_layout
from torchkiln.runtimes.runtime import DOCKER

_LONG = 100  # characters of a value that are shown; --json has all


@click.command("diff")
@names_argument
@selection
@layout_option("the OCI layout that has the tags and digests")
@click.option("--exit-code", is_flag=True, help="exit with 1 if the images differ")
@json_option
def diff(names: tuple[str, ...], chosen: CellOptions, output: Path, exit_code: bool, as_json: bool) -> None:
    """Compare the packages, settings and layers of the images A and B.

    A and B are tags, aliases or digests of the layout, DIR:REF, or docker:NAME for an image in the Docker
    engine. The images of a selection come after the named ones.

    If both digests are the same, no layer is read, and the numbers in --json are null.

    Exits with 0 even if the images differ, unless --exit-code is used.
    """
    pair = (*names, *(chosen.tags() if chosen.any else ()))
    if len(pair) != 2:
        raise ConfigError(f"diff compares two images, not {len(pair)}", hint="see: torchkiln diff --help")
    left, right = (_source(name, output, chosen) for name in pair)
    found = None
    digests = [same_digest(left, right) or ""] * 2
    if not digests[0]:
        with progress(quiet=False) as observer:
            images = layered_images(left, right, observer)
        found, digests = contrast(*images), [image.digest for image in images]
    if as_json:
        click.echo(json.dumps(_json(pair, digests, found), indent=2))
    else:
        named = [f"{name} ({digest[:19]})" for name, digest in zip(pair, digests, strict=True)]
        terminal.echo("\n\n".join(_text(named, found)))
    sys.exit(int(exit_code and found is not None and not found.same))


def _source(name: str, output: Path, chosen: CellOptions) -> ImageReader:
    """The layout or the engine that has the image *name*."""
    if name.startswith(DOCKER):
        return InEngine(name.removeprefix(DOCKER), find_engine(builds=False))
    image = locate(name, output, chosen)
    return InLayout(open_layout(image.layout).image(image.ref))


def _text(names: Sequence[str], found: Contrast | None) -> list[str]:
    """The names and the verdict, and between them tables of what differs; None: the digests are the same."""
    parts = ["\n".join(f"{side}  {name}" for side, name in zip("AB", names, strict=True))]
    if found is None:
        return [*parts, "the images are the same"]
    width = terminal.columns(err=False)

    def add(
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Sequence[int] = (),
        text: Sequence[int] = (),
    ) -> None:
        parts.append("\n".join(laid_out(header, rows, width, right=right, text=text)))

    if rows := [(_package(one.name, one.place), one.a or "–", one.b or "–") for one in found.packages]:
        add((f"packages ({len(rows)})", "A", "B"), rows)
    if rows := [(one.name, _short(one.a), _short(one.b)) for one in found.settings]:
        add((f"settings ({len(rows)})", "A", "B"), rows, text=(1, 2))
    alone = {"A": found.only_a, "B": found.only_b}
    shares = [(f"only in {side}", share) for side, share in alone.items() if share.layers]
    shares = [("shared", found.shared), *shares, ("all of A", found.a), ("all of B", found.b)]
    layers = [(name, *_share(share)) for name, share in shares]
    add(("layers", "", "files", "content", "transferred"), layers, right=(1, 2, 3, 4))
    if unshared := [
        (side, str(layer.contents.files), size(layer.contents.bytes), layer.title or layer.diff_id)
        for side, share in alone.items()
        for layer in share.layers
    ]:
        add(("only in", "files", "content", "layer"), unshared, right=(1, 2), text=(3,))
    if found.reordered:
        parts.append("the same layers in another order")
    return [*parts, "the images are the same" if found.same else "the images differ"]


def _json(names: Sequence[str], digests: Sequence[str], found: Contrast | None) -> dict[str, Any]:
    """The object that `diff --json` prints; None: the digests are the same, and no layer was read."""
    sides = (found.a, found.b) if found else (None, None)
    return {
        **{
            side: {"name": name, "digest": digest, **_numbers(share)}
            for side, name, digest, share in zip("ab", names, digests, sides, strict=True)
        },
        "same": found is None or found.same,
        "packages": [asdict(change) for change in found.packages] if found else [],
        "settings": [asdict(setting) for setting in found.settings] if found else [],
        "layers": {
            "shared": _layers(found.shared) if found else None,
            "only_in_a": _layers(found.only_a) if found else [],
            "only_in_b": _layers(found.only_b) if found else [],
            "reordered": found is not None and found.reordered,
        },
    }


def _share(share: LayerSet) -> tuple[str, str, str, str]:
    transferred = "–" if share.size is None else size(share.size)
    return str(len(share.layers)), f"{share.files:,}", size(share.bytes), transferred


def _numbers(share: LayerSet | None) -> dict[str, int | None]:
    return {
        "layers": len(share.layers) if share else None,
        "files": share.files if share else None,
        "content_bytes": share.bytes if share else None,
        "compressed_bytes": share.size if share else None,
    }


def _layers(share: LayerSet) -> list[dict[str, Any]]:
    return [
        {
            "diff_id": layer.diff_id,
            "title": layer.title,
            "files": layer.contents.files,
            "content_bytes": layer.contents.bytes,
            "compressed_bytes": layer.size,
        }
        for layer in share.layers
    ]


def _package(name: str, place: str) -> str:
    """The package's name; with its folder, unless that is in the virtual environment or unknown."""
    return name if not place or place.startswith("opt/venv/") else f"{name} in /{place}"


def _short(text: str) -> str:
    return shortened(text, _LONG) or "–"
