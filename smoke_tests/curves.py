"""Summarize times and compare loss curves. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

WINDOW = 20  # steps; the average removes the noise of single batches


def figures(value: float) -> float:
    """*value* rounded to five significant digits, for a readable report."""
    return float(f"{value:.5g}")


def spread(times: Sequence[float]) -> dict[str, float]:
    """The smallest, middle and largest of *times*."""
    return {"minimum": min(times), "median": figures(median(times)), "maximum": max(times)}


def smoothed(curve: Sequence[float]) -> list[float]:
    """The moving average over WINDOW values."""
    return [sum(curve[at : at + WINDOW]) / WINDOW for at in range(len(curve) - WINDOW + 1)]


def widest_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest distance between the smoothed curves; NaN if either contains NaN."""
    gaps = [abs(a - b) for a, b in zip(smoothed(first), smoothed(second), strict=True)]
    return next((gap for gap in gaps if gap != gap), max(gaps))


def fall(curve: Sequence[float]) -> float:
    """The mean of the last WINDOW values divided by the first value: 1 if nothing was learned."""
    return smoothed(curve)[-1] / curve[0]
