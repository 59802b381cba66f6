"""The distance of a result from its reference. Imports no torch: the tensors have the needed methods."""

from __future__ import annotations

import math
from typing import Any


def relative_error(found: Any, reference: Any) -> float:
    """‖found - reference‖ / ‖reference‖ (Frobenius norm) in FP64. NaN, which is within no bound, if any value
    is NaN or *reference* is all zero."""
    exact = reference.double()
    off, size = float((found.double() - exact).norm()), float(exact.norm())
    return off / size if size else math.nan


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN, which is within no bound, if *whole* is 0, as the allocator's figures are if a
    variable turns it off."""
    return part / whole if whole else math.nan
