"""Draw line plots as SVG, with linear or logarithmic axes; series differ in colour and dashes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from bench.plot import number, sheet

_HEIGHT, _LEFT, _END, _TOP, _FLOOR = 420, 70, 590, 56, 372  # pixels; the names of series are right of _END
_MARKED = 40  # maximum number of points that are marked
_COLOURS = (
    ("#0969da", "#58a6ff", "none"),
    ("#bc4c00", "#f0883e", "7 3"),
    ("#1a7f37", "#3fb950", "2 3"),
    ("#8250df", "#bc8cff", "9 3 2 3"),
    ("#57606a", "#9198a1", "4 4"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The points of a line, sorted by x."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis from *low* to *high*, with ticks."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def part(self, value: float) -> float:
        """The position of *value*, from 0 to 1."""
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (at - low) / (high - low)


def linear(title: str, values: Iterable[float]) -> Axis:
    """A linear axis from zero, with about six round ticks."""
    top = max(values) * 1.05
    unit = 10 ** math.floor(math.log10(top / 6))
    step = next(unit * times for times in (1, 2, 5, 10) if top / (unit * times) <= 7)
    ticks = tuple((step * at, f"{step * at:g}") for at in range(int(top / step) + 1))
    return Axis(title=title, low=0.0, high=top, ticks=ticks)


def decades(title: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis, with a tick at each power of ten."""
    known = list(values)
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    last = max(last, first + 1)
    ticks = tuple((10.0**power, f"{10.0**power:,g}") for power in range(first, last + 1))
    return Axis(title=title, low=10.0**first, high=10.0**last, ticks=ticks, log=True)


def sizes(title: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis of bytes, with a tick at each factor of 16 below the largest."""
    known = list(values)
    low, high = min(known), max(known)
    ticks = []
    at = high
    while at >= low:
        ticks.append((at, size(at)))
        at /= 16
    return Axis(title=title, low=low / 1.1, high=high * 1.1, ticks=tuple(ticks[::-1]), log=True)


def size(count: float) -> str:
    """Bytes in the largest unit that leaves at least one: `4 MiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(len(units) - 1, max(0, int(math.log2(count) // 10)))
    return f"{count / 1024**power:.4g} {units[power]}"


def figure(value: float) -> str:
    """Three significant digits; two below 1."""
    return number(value) if value >= 1 else f"{value:.2g}"


def lines(title: str, legend: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The plot, with the names and last values of the series on the right, sorted by last value."""

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = x.part(point[0]), y.part(point[1])
        return _LEFT + (_END - _LEFT) * across, _FLOOR - (_FLOOR - _TOP) * up

    body = [_style(len(series)), *_axes(x, y)]
    for at, one in enumerate(series):
        body += _line(at, [place(point) for point in one.points])
    ranked = sorted(enumerate(series), key=lambda pair: -pair[1].points[-1][1])
    for rank, (at, one) in enumerate(ranked):
        middle = _TOP + 14 + 20 * rank
        body.append(f'<path class="series s{at}" fill="none" d="M{_END + 14} {middle}h30"/>')
        body.append(_text(f"{one.label}: {figure(one.points[-1][1])}", _END + 50, middle + 4))
    return sheet(title, legend, _HEIGHT, body)


def _axes(x: Axis, y: Axis) -> Iterator[str]:
    """The lines, names and ticks of both axes."""
    for value, name in x.ticks:
        at = _LEFT + (_END - _LEFT) * x.part(value)
        yield f'<path class="grid" d="M{at:.1f} {_TOP}V{_FLOOR}"/>'
        yield _text(name, at, _FLOOR + 16, anchor="middle", kind="soft")
    for value, name in y.ticks:
        at = _FLOOR - (_FLOOR - _TOP) * y.part(value)
        yield f'<path class="grid" d="M{_LEFT} {at:.1f}H{_END}"/>'
        yield _text(name, _LEFT - 6, at + 4, anchor="end", kind="soft")
    yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{_FLOOR}H{_END}"/>'
    yield _text(x.title, (_LEFT + _END) / 2, _HEIGHT - 10, anchor="middle", kind="soft")
    turned = f'<g transform="translate(18 {(_TOP + _FLOOR) // 2}) rotate(-90)">'
    yield f"{turned}{_text(y.title, 0, 0, anchor='middle', kind='soft')}</g>"


def _text(content: str, x: float, y: float, *, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(at: int, places: Sequence[tuple[float, float]]) -> list[str]:
    path = "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
    found = [f'<path class="series s{at}" fill="none" d="M{path}"/>']
    if len(places) <= _MARKED:
        found += [f'<circle class="d{at}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in places]
    return found


def _style(count: int) -> str:
    """The colours of *count* series, for light and dark backgrounds."""
    used = [(at, *_COLOURS[at % len(_COLOURS)]) for at in range(count)]
    light = "".join(
        f" .s{at} {{ stroke: {one}; stroke-dasharray: {dash} }} .d{at} {{ fill: {one} }}"
        for at, one, _, dash in used
    )
    dark = "".join(f" .s{at} {{ stroke: {one} }} .d{at} {{ fill: {one} }}" for at, _, one, _ in used)
    return (
        "<style>.series { stroke-width: 2 } .grid { stroke: #8c959f; stroke-opacity: 0.25 }"
        f"{light} @media (prefers-color-scheme: dark) {{{dark} }}</style>"
    )
