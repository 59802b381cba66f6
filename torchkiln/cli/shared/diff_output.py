"""How a comparison of two images is told: as text for people, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from torchkiln.cli.shared.console import size
from torchkiln.compare.allowed import Sifted
from torchkiln.compare.files import Difference
from torchkiln.compare.layers import Contrast, LayerSet
from torchkiln.errors import printable
from torchkiln.model.contents import LayeredImage, WholeImage

_LONG = 100  # characters of a value that are shown; --json has all


def contrast_text(a: str, b: str, found: Contrast) -> str:
    """Tables: packages and settings that differ, then layers and sizes."""
    parts = []
    if found.packages:
        rows = [
            (_package(change.name, change.place), change.a or "–", change.b or "–")
            for change in found.packages
        ]
        parts.append(_table((f"packages ({len(rows)})", "A", "B"), rows))
    if found.settings:
        rows = [(one.at, _short(one.a) or "–", _short(one.b) or "–") for one in found.settings]
        parts.append(_table((f"settings ({len(rows)})", "A", "B"), rows))
    shares = [("shared", found.shared), ("only in A", found.only_a), ("only in B", found.only_b)]
    layers = [(name, *_share(share)) for name, share in shares if share.layers or name == "shared"]
    layers += [("all of A", *_share(found.a)), ("all of B", *_share(found.b))]
    parts.append(_table(("layers", "", "files", "content", "transferred"), layers, right=(1, 2, 3, 4)))
    alone = [
        (where, str(layer.contents.files), size(layer.contents.bytes), _short(layer.title or layer.diff_id))
        for where, share in (("A", found.only_a), ("B", found.only_b))
        for layer in share.layers
    ]
    if alone:
        parts.append(_table(("only in", "files", "content", "layer"), alone, right=(1, 2)))
    if found.reordered:
        parts.append("the same layers in another order")
    verdict = "the same" if found.same else "they differ"
    return printable("\n\n".join((f"A  {a}\nB  {b}", *parts, verdict)))


def contrast_json(a: str, b: str, left: LayeredImage, right: LayeredImage, found: Contrast) -> str:
    """The contract of `diff --json`."""
    told = {
        "a": {"name": a, "digest": left.digest, **_numbers(found.a)},
        "b": {"name": b, "digest": right.digest, **_numbers(found.b)},
        "same": found.same,
        "packages": [asdict(change) for change in found.packages],
        "settings": [_setting(one) for one in found.settings],
        "layers": {
            "shared": _layers(found.shared),
            "only_in_a": _layers(found.only_a),
            "only_in_b": _layers(found.only_b),
            "reordered": found.reordered,
        },
    }
    return json.dumps(told, indent=2)


def sifted_text(found: Sifted) -> Iterator[str]:
    """A line for each difference that is not allowed."""
    for one in found.left:
        place = f"/{one.at}" if one.what != "setting" else one.at
        if one.what in ("only-in-a", "only-in-b"):
            yield printable(f"{place}: only in {one.what[-1].upper()} ({one.a or one.b})")
        else:
            yield printable(f"{place}: {one.what}: {_short(one.a) or '–'} → {_short(one.b) or '–'}")


def sifted_json(a: str, b: str, left: WholeImage, right: WholeImage, found: Sifted) -> str:
    """The contract of `diff --files --json`."""
    told = {
        "a": {"name": a, "paths": len(left.tree)},
        "b": {"name": b, "paths": len(right.tree)},
        "same": not found.left,
        "differences": [asdict(one) for one in found.left],
        "allowed": [{**asdict(one), "reason": entry.reason} for one, entry in found.allowed],
        "idle": [
            {"at": entry.at.pattern, "what": entry.what, "reason": entry.reason} for entry in found.idle
        ],
    }
    return json.dumps(told, indent=2)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


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


def _setting(one: Difference) -> dict[str, str]:
    return {"name": one.at, "a": one.a, "b": one.b}


def _package(name: str, place: str) -> str:
    """The place only where it is not the usual one of its kind."""
    return name if not place or place.startswith("opt/venv/") else f"{name} in /{place}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
