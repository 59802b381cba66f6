"""A failed request → whether and when it is tried again."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping

ATTEMPTS = 6  # in a row without a byte of progress
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST = 30.0  # seconds; a server that wants more than that is as good as down


class Transient(Exception):
    """Trying again may help; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def retry_after(headers: Mapping[str, str], *, now: Callable[[], float] = time.time) -> float:
    """Seconds that a Retry-After asks for, as a number or a date, at most 30; 0 where there is none."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST)
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(when - now(), 0.0), _LONGEST)


def pause(attempt: int, wait: float) -> float:
    """Seconds before attempt number *attempt* (1 is the first repetition)."""
    return max(wait, min(0.125 * float(2**attempt), 8.0))
