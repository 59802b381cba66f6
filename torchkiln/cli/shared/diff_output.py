"""Formats the comparison of two images, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.console import size
from torchkiln.cli.shared.tables import laid_out, shortened
from torchkiln.compare.layers import Contrast, LayerSet
from torchkiln.errors import printable
from torchkiln.model.contents import LayeredImage

_LONG = 100  # characters of a value that are shown; --json has all


def contrast_text(a: str, b: str, found: Contrast) -> str:
    """Tables of the packages and settings that differ, then of layers and sizes."""
    parts: list[str] = []
    width = terminal.columns(err=False)

    def add(
        header: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        *,
        right: tuple[int, ...] = (),
        text: tuple[int, ...] = (),
    ) -> None:
        parts.append("\n".join(laid_out(header, rows, width, right=right, text=text)))

    if found.packages:
        rows = [
            (_package(change.name, change.place), change.a or "–", change.b or "–")
            for change in found.packages
        ]
        add((f"packages ({len(rows)})", "A", "B"), rows)
    if found.settings:
        rows = [
            (setting.name, _short(setting.a) or "–", _short(setting.b) or "–") for setting in found.settings
        ]
        add((f"settings ({len(rows)})", "A", "B"), rows, text=(1, 2))
    shares = [("shared", found.shared), ("only in A", found.only_a), ("only in B", found.only_b)]
    layers = [(name, *_share(share)) for name, share in shares if share.layers or name == "shared"]
    layers += [("all of A", *_share(found.a)), ("all of B", *_share(found.b))]
    add(("layers", "", "files", "content", "transferred"), layers, right=(1, 2, 3, 4))
    alone = [
        (where, str(layer.contents.files), size(layer.contents.bytes), layer.title or layer.diff_id)
        for where, share in (("A", found.only_a), ("B", found.only_b))
        for layer in share.layers
    ]
    if alone:
        add(("only in", "files", "content", "layer"), alone, right=(1, 2), text=(3,))
    if found.reordered:
        parts.append("the same layers in another order")
    verdict = "the images are the same" if found.same else "the images differ"
    return printable("\n\n".join((f"A  {a}\nB  {b}", *parts, verdict)))


def contrast_json(a: str, b: str, left: LayeredImage, right: LayeredImage, found: Contrast) -> str:
    """The object that `diff --json` prints."""
    document = {
        "a": {"name": a, "digest": left.digest, **_numbers(found.a)},
        "b": {"name": b, "digest": right.digest, **_numbers(found.b)},
        "same": found.same,
        "packages": [asdict(change) for change in found.packages],
        "settings": [asdict(setting) for setting in found.settings],
        "layers": {
            "shared": _layers(found.shared),
            "only_in_a": _layers(found.only_a),
            "only_in_b": _layers(found.only_b),
            "reordered": found.reordered,
        },
    }
    return json.dumps(document, indent=2)


def same_text(a: str, b: str, digest: str) -> str:
    """The output of `diff` for images with the same *digest*."""
    return printable(f"A  {a} ({digest[:19]})\nB  {b} ({digest[:19]})\n\nthe images are the same")


def same_json(a: str, b: str, digest: str) -> str:
    """The object of `diff --json` for images with the same *digest*: numbers are null, no layer was read."""
    numbers = dict.fromkeys(("layers", "files", "content_bytes", "compressed_bytes"))
    document = {
        "a": {"name": a, "digest": digest, **numbers},
        "b": {"name": b, "digest": digest, **numbers},
        "same": True,
        "packages": [],
        "settings": [],
        "layers": {"shared": None, "only_in_a": [], "only_in_b": [], "reordered": False},
    }
    return json.dumps(document, indent=2)


def _share(share: LayerSet) -> tuple[str, str, str, str]:
    transferred = "–" if share.size is None else size(share.size)
    return str(len(share.layers)), f"{share.files:,}", size(share.bytes), transferred


def _numbers(share: LayerSet) -> dict[str, Any]:
    return {
        "layers": len(share.layers),
        "files": share.files,
        "content_bytes": share.bytes,
        "compressed_bytes": share.size,
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
    return shortened(text, _LONG)
