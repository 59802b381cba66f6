"""How far a result is from its reference. No torch is imported: the tensors bring their own methods."""

from __future__ import annotations

from typing import Any


def relative_error(found: Any, reference: Any) -> float:
    """‖found - reference‖ / ‖reference‖ (Frobenius), taken in FP64; NaN where anything is NaN."""
    exact = reference.double()
    return float((found.double() - exact).norm() / exact.norm())
