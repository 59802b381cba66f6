"""Loss curves: how far two are apart, how far one fell. No torch."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 20  # steps: a batch's own luck goes, the course stays


def figures(value: float) -> float:
    """*value* to five significant digits: more is noise, and a report is read by people."""
    return float(f"{value:.5g}")


def smoothed(curve: Sequence[float]) -> list[float]:
    """The mean of each WINDOW values in a row."""
    return [sum(curve[at : at + WINDOW]) / WINDOW for at in range(len(curve) - WINDOW + 1)]


def widest_gap(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest distance between the smoothed curves; NaN where one has a NaN."""
    gaps = [abs(a - b) for a, b in zip(smoothed(one), smoothed(other), strict=True)]
    return next((gap for gap in gaps if gap != gap), max(gaps))


def fall(curve: Sequence[float]) -> float:
    """The last WINDOW values' mean as a part of the first value: 1 where nothing was learned."""
    return smoothed(curve)[-1] / curve[0]
