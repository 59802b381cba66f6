"""A failed request → whether and when it is tried again: tenacity's loop, with our pauses."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import tenacity

ATTEMPTS = 6  # in a row without a byte of progress
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
T = TypeVar("T")
_LONGEST = 30.0  # seconds; a server that wants more than that is as good as down


class Transient(Exception):
    """Trying again may help; `wait` is what the server asked for, in seconds."""

    at_once = False  # whether it is tried again without a pause

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


class GivenUp(Exception):
    """No attempt succeeded; `attempts` of them were made. Its cause is the last one's `Transient`."""

    def __init__(self, error: Transient, attempts: int) -> None:
        super().__init__(str(error))
        self.error, self.attempts = error, attempts


class Progress:
    """Counts the failures since the last progress: a transfer that goes on is not given up.

    :param measure: a number that grows with the progress, such as bytes.
    :param step: how much it must grow by, so that it counts.
    """

    def __init__(self, measure: Callable[[], int] = lambda: 0, step: int = 1) -> None:
        self._measure, self._step, self._before, self.failures = measure, step, measure(), 0

    def failed(self) -> None:
        """An attempt failed."""
        now = self._measure()
        if now >= self._before + self._step:
            self.failures, self._before = 0, now
        self.failures += 1


def retry(
    step: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    patience: float = float("inf"),
    attempts: int = ATTEMPTS,
    progress: Progress | None = None,
) -> T:
    """*step*, again with growing pauses while it raises `Transient`.

    :param patience: seconds of attempts and pauses after which no further attempt begins.
    :raises GivenUp: after so many *attempts* without progress, or after *patience*.
    """
    count = progress or Progress()

    def wait(state: tenacity.RetryCallState) -> float:
        count.failed()
        error = _error(state)
        return 0.0 if error.at_once else pause(count.failures, error.wait)

    def stop(state: tenacity.RetryCallState) -> bool:
        spent = max(state.seconds_since_start or 0.0, state.idle_for)
        return count.failures >= attempts or spent + state.upcoming_sleep >= patience

    loop = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient), wait=wait, stop=stop, sleep=sleep
    )
    try:
        return loop(step)
    except tenacity.RetryError as error:
        last = error.last_attempt.exception()
        assert isinstance(last, Transient)
        raise GivenUp(last, count.failures) from last


def _error(state: tenacity.RetryCallState) -> Transient:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert isinstance(error, Transient)
    return error
