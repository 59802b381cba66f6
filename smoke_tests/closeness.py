"""How far a result is from its reference. No torch is imported: the tensors bring their own methods."""

from __future__ import annotations

import math
from typing import Any


def relative_error(found: Any, reference: Any) -> float:
    """‖found - reference‖ / ‖reference‖ (Frobenius), taken in FP64; NaN where anything is NaN or all of
    *reference* is zero, and NaN is within no bound."""
    exact = reference.double()
    off, size = float((found.double() - exact).norm()), float(exact.norm())
    return off / size if size else math.nan
