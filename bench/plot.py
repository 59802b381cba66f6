"""Draw bar charts as SVG: medians as bars, minimum and maximum as whiskers, and targets.

The colours follow the reader's colour scheme, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 900, 390, 150, 30, 56
_STYLE = """<style>
    text { font: 12px DejaVu Sans, Verdana, Arial, sans-serif; fill: #1f2328 }
    .title { font-size: 15px; font-weight: bold } .soft { fill: #57606a; font-size: 11px }
    .ground { fill: #ffffff } .axis { stroke: #8c959f } .whisker { stroke: #1f2328; stroke-width: 1.5 }
    .plain { fill: #8c959f } .met { fill: #2da44e } .missed { fill: #cf222e }
    .target { stroke: #0969da; stroke-width: 2; stroke-dasharray: 4 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .soft { fill: #9198a1 } .ground { fill: #0d1117 } .axis { stroke: #59636e }
      .whisker { stroke: #e6edf3 } .plain { fill: #6e7681 } .met { fill: #3fb950 } .missed { fill: #f85149 }
      .target { stroke: #58a6ff }
    }
  </style>"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A row: a value with its minimum and maximum, and an optional target."""

    label: str
    value: float
    low: float
    high: float
    unit: str
    target: float | None = None
    met: bool | None = None
    scale: str | None = None  # bars with the same name share a scale


def bars(title: str, legend: str, rows: Sequence[Bar]) -> str:
    """The chart. Scales start at zero; bars without a named scale share a scale for each unit and kind of
    target."""
    height = _TOP + _ROW * len(rows) + 16
    tops: dict[object, float] = {}
    for bar in rows:
        tops[_scale(bar)] = max(tops.get(_scale(bar), 0.0), 1.08 * max(bar.high, bar.target or 0.0))
    body = [line for at, bar in enumerate(rows) for line in _row(bar, _TOP + _ROW * at, tops[_scale(bar)])]
    axis = f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{height - 14}"/>'
    return sheet(title, legend, height, [*body, axis])


def sheet(title: str, legend: str, height: int, body: Iterable[str]) -> str:
    """An SVG with a title and *body*, for light and dark pages."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
            f' height="{height}" role="img" aria-labelledby="title">',
            f'  <title id="title">{escape(title)}</title>',
            f"  {_STYLE}",
            f'  <rect class="ground" width="{_WIDTH}" height="{height}" rx="8"/>',
            f'  <text class="title" x="16" y="24">{escape(title)}</text>',
            f'  <text class="soft" x="16" y="42">{escape(legend)}</text>',
            *(f"  {line}" for line in body),
            "</svg>",
            "",
        )
    )


def _scale(bar: Bar) -> object:
    return bar.scale or (bar.unit, bar.target is None)


def _row(bar: Bar, y: int, top: float) -> list[str]:
    def x(value: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / top:.1f}"

    kind = {None: "plain", True: "met", False: "missed"}[bar.met]
    middle = y + 13
    aim = "" if bar.target is None else f", target {number(bar.target)}"
    width = float(x(bar.value)) - _LEFT
    lines = [
        f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{kind}" x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="18" rx="2"/>',
    ]
    if bar.high > bar.low:
        lines.append(
            f'<path class="whisker" fill="none" d="M{x(bar.low)} {middle - 4}v8m0 -4H{x(bar.high)}m0 -4v8"/>'
        )
    if bar.target is not None:
        at = x(bar.target)
        lines.append(f'<line class="target" x1="{at}" y1="{y}" x2="{at}" y2="{y + 26}"/>')
    value = f"{number(bar.value)} {bar.unit}".rstrip() + aim
    lines.append(f'<text x="{_WIDTH - _RIGHT + 10}" y="{y + 17}">{escape(value)}</text>')
    return lines


def number(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
