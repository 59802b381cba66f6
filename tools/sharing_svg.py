"""Draw shared layers as SVG: a row for each image, a column for each layer that several images have.

Registry and disk are panels with their own scales. Layers of a single image follow the columns. A layer has
the same colour everywhere: one that is coloured but not in a column is stored again for that image. The
colours are legible on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from torchkiln.compare.sharing import Sharing, Storage, StoredLayer
from torchkiln.errors import printable
from torchkiln.model.digest import Digest
from torchkiln.util.sizes import size

#: Each has a contrast of at least 3 against both backgrounds.
COLOURS = ("#2f7ed8", "#c9541c", "#23934f", "#a256c4", "#9a7b0c", "#d23f6b", "#12899a", "#7676d6")
GROUNDS = ("#ffffff", "#0d1117")
_WIDTH, _RIGHT, _GAP = 1100, 200, 20
_ROW, _HEAD, _TOP = 22, 58, 34
_LETTER = 7.4  # maximum average width of a letter at 12 pixels
_MAX_NAME = 44  # letters
_NUMBERED = 13  # minimum width in pixels of a column that shows its number
_THIN = 0.6  # pixels between two layers, and the minimum width of one

_STYLE = f"""<style>
    text {{ font: 12px DejaVu Sans, Verdana, Arial, sans-serif; fill: #1f2328 }}
    .title {{ font-size: 15px; font-weight: bold }} .soft {{ fill: #57606a; font-size: 11px }}
    .head {{ font-weight: bold }} .ground {{ fill: {GROUNDS[0]} }} .row {{ fill: #f3f5f7 }}
    .own {{ fill: #8c959f }} .scale {{ stroke: #57606a; fill: none }}
    {" ".join(f".c{at} {{ fill: {colour} }}" for at, colour in enumerate(COLOURS))}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3 }} .soft {{ fill: #9198a1 }} .ground {{ fill: {GROUNDS[1]} }}
      .row {{ fill: #161b22 }} .own {{ fill: #6e7681 }} .scale {{ stroke: #9198a1 }}
    }}
  </style>"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """The data that both panels share. `numbers` are those of shared layers, by diff_id."""

    tags: tuple[str, ...]
    numbers: Mapping[Digest, int]
    left: float


def picture(found: Sharing) -> str:
    """The picture of *found*."""
    tags = tuple(stack.tag for stack in found.stacks)
    frame = _Frame(
        tags=tags,
        numbers={diff_id: number for number, diff_id in enumerate(found.shared, 1)},
        left=24 + _LETTER * max((len(_short(tag)) for tag in tags), default=0),
    )
    tall = _HEAD + _ROW * len(tags) + 14
    panels = (("In a registry, compressed", found.registry), ("On a host's disk, unpacked", found.disk))
    description = " ".join(_summary(name, place) + "." for name, place in panels)
    lines = [
        line
        for at, (name, place) in enumerate(panels)
        for line in _panel(name, place, frame, _TOP + tall * at)
    ]
    below = _TOP + 2 * tall + 8
    lines += _legend(found, frame, below)
    height = below + 18 * (-(-len(frame.numbers) // 2) + 1) + 12
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
            f' height="{height}" role="img" aria-labelledby="title desc">',
            '  <title id="title">Which layers which images share</title>',
            f'  <desc id="desc">{_text(description)}</desc>',
            f"  {_STYLE}",
            f'  <rect class="ground" width="{_WIDTH}" height="{height}" rx="8"/>',
            '  <text class="title" x="16" y="24">Which layers which images share</text>',
            *(f"  {line}" for line in lines),
            "</svg>",
            "",
        )
    )


def _summary(name: str, place: Storage) -> str:
    more = f"; layers not known: {place.unknown}" if place.unknown else ""
    ratio = "" if place.ratio is None else f" = {place.ratio:.3f}"
    return f"{name}: {size(place.unique)} kept for {size(place.total)} of images{ratio}{more}"


def _panel(name: str, place: Storage, frame: _Frame, top: int) -> Iterator[str]:
    columns = [one for one in place.stored if one.shared]
    alone = [[one for one in image if one is not None and not one.shared] for image in place.images]
    shared = sum(one.bytes for one in columns)
    widest = max((sum(one.bytes for one in own) for own in alone), default=0)
    scale = (_WIDTH - _RIGHT - frame.left - _GAP) / (shared + widest or 1)  # pixels a byte
    yield f'<text class="head" x="16" y="{top + 18}">{_text(_summary(name, place))}</text>'
    yield from _ruler(scale, top + 18)
    for image, tag in enumerate(frame.tags):
        yield from _row(place, image, tag, frame.left, _y(top, image))
    x = frame.left
    for one in columns:
        yield from _column(one, place, frame, x, scale, top)
        x += one.bytes * scale
    yield f'<text class="soft" x="{x + _GAP:.1f}" y="{top + _HEAD - 8}">of one image alone</text>'
    for image, own in enumerate(alone):
        at = x + _GAP
        for one in own:
            kind = _kind(one, frame)
            told = f"{one.title}, {size(one.bytes)}"
            rect = _rect(at, _y(top, image), one.bytes * scale)
            yield f'<g class="{kind}"><title>{_text(told)}</title>{rect}</g>'
            at += one.bytes * scale


def _row(place: Storage, image: int, tag: str, left: float, y: int) -> Iterator[str]:
    if image % 2 == 0:
        yield f'<rect class="row" x="8" y="{y - 1}" width="{_WIDTH - 16}" height="{_ROW}"/>'
    full = f"<title>{_text(tag)}</title>" if _short(tag) != tag else ""
    yield f'<text x="{left - 8:.1f}" y="{y + 14}" text-anchor="end">{_text(_short(tag))}{full}</text>'
    more = " + ?" if None in place.images[image] else ""
    told = f"{size(place.bytes_of(image))}{more}, {size(place.shared_of(image))} shared"
    yield f'<text class="soft" x="{_WIDTH - _RIGHT + 10}" y="{y + 14}">{told}</text>'


def _column(
    one: StoredLayer, place: Storage, frame: _Frame, x: float, scale: float, top: int
) -> Iterator[str]:
    """A block in the row of each image that has the layer, below its number if the column is wide enough."""
    number, width = frame.numbers[one.diff_id], one.bytes * scale
    blocks = "".join(_rect(x, _y(top, image), width) for image in one.images)
    told = f"{number}: {one.title}, {size(one.bytes)}, once for {len(one.images)} images"
    yield f'<g class="{_kind(one, frame)}"><title>{_text(told)}</title>{blocks}</g>'
    if width >= _NUMBERED:
        at = f'x="{x + width / 2:.1f}" y="{top + _HEAD - 8}"'
        yield f'<text class="soft" {at} text-anchor="middle">{number}</text>'


def _ruler(scale: float, y: int) -> Iterator[str]:
    """A scale bar with a round number of bytes."""
    minimum, count = 60 / scale, 1
    while count * 10 <= minimum:
        count *= 10
    count *= next(factor for factor in (1, 2, 5, 10) if count * factor >= minimum or factor == 10)
    left, right = _WIDTH - 16 - count * scale, _WIDTH - 16
    yield f'<path class="scale" d="M{left:.1f} {y - 8}v8m0 -4H{right}m0 -4v8"/>'
    yield f'<text class="soft" x="{left - 6:.1f}" y="{y}" text-anchor="end">{size(count)}</text>'


def _legend(found: Sharing, frame: _Frame, top: int) -> Iterator[str]:
    """Number, colour, size and title of each shared layer, in two columns."""
    colours = "Colours and numbers: layers of several images. Grey: layers of a single image."
    again = "Coloured, but not in a column: the layer is stored again, because the layers below it differ."
    yield f'<text class="soft" x="16" y="{top + 6}">{_text(f"{colours} {again}")}</text>'
    blobs = {one.diff_id: one for one in reversed(found.registry.stored)}
    half = -(-len(frame.numbers) // 2)
    for at, (diff_id, number) in enumerate(frame.numbers.items()):
        x, y = 16 + at // half * (_WIDTH - 16) // 2, top + 18 * (at % half + 1)
        one = blobs[diff_id]
        yield f'<rect class="{_kind(one, frame)}" x="{x}" y="{y}" width="12" height="12" rx="2"/>'
        yield (
            f'<text class="soft" x="{x + 18}" y="{y + 10}">'
            f"{number}  {_text(_short(one.title, 60))}, {size(one.bytes)}</text>"
        )


def _kind(one: StoredLayer, frame: _Frame) -> str:
    number = frame.numbers.get(one.diff_id)
    return "own" if number is None else f"c{(number - 1) % len(COLOURS)}"


def _rect(x: float, y: int, width: float) -> str:
    wide = max(width - _THIN, _THIN)
    return f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_ROW - 2}"/>'


def _y(top: int, image: int) -> int:
    return top + _HEAD + _ROW * image


def _short(text: str, length: int = _MAX_NAME) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip(", ") + "…"


def _text(text: str) -> str:
    """*text* escaped for XML, without two characters that XML does not allow."""
    return escape(printable(text).replace("\ufffe", "?").replace("\uffff", "?"))
