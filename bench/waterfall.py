"""Draw a waterfall chart: for each step, a bar for the value after it, and the part that it removed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.plot import number, sheet

_LEFT, _RIGHT, _ROW, _TOP = 190, 730, 34, 60  # pixels


def waterfall(title: str, legend: str, unit: str, steps: Sequence[tuple[str, float]]) -> str:
    """The picture of *steps*, each a label and the value after it; the first is 100 %."""
    whole = max(value for _, value in steps)
    body, before = [], steps[0][1]
    for at, (label, value) in enumerate(steps):
        y, end = _TOP + _ROW * at, _x(value, whole)
        part = f"{number(value)} {unit}, {number(100 * value / steps[0][1])} %"
        body += [
            f'<text x="{_LEFT - 8}" y="{y + 19}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="plain" x="{_LEFT}" y="{y + 4}" width="{end - _LEFT:.1f}" height="22" rx="2"/>',
            f'<text x="{_RIGHT + 10}" y="{y + 19}">{escape(part)}</text>',
        ]
        if value < before:
            width = _x(before, whole) - end
            place = f'x="{end:.1f}" y="{y + 4}" width="{width:.1f}" height="22"'
            body.append(f'<rect class="met" opacity="0.45" {place}/>')
        before = value
    floor = _TOP + _ROW * len(steps)
    body.append(f'<line class="axis" x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{floor}"/>')
    return sheet(title, legend, floor + 16, body)


def _x(value: float, whole: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / whole
