"""Retries failed requests with increasing pauses."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

ATTEMPTS = 6  # failed attempts in a row, without progress, after which no retry follows
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
T = TypeVar("T")
_MAX_WAIT = 30.0  # seconds; a longer Retry-After is shortened to this


class Transient(Exception):
    """A failure that a retry may fix; `wait` is the server's Retry-After in seconds."""

    at_once = False  # whether to retry without a pause

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def retry_after(headers: Mapping[str, str], *, now: Callable[[], float] = time.time) -> float:
    """Seconds of a Retry-After header, a number or a date, at most 30; 0 without one."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_WAIT)
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(when - now(), 0.0), _MAX_WAIT)


def pause(attempt: int, wait: float) -> float:
    """Seconds before retry number *attempt*, at least *wait*."""
    return max(wait, min(0.125 * float(2**attempt), 8.0))


class GivenUp(Exception):
    """All `attempts` failed. Its cause is the last `Transient`."""

    def __init__(self, error: Transient, attempts: int) -> None:
        super().__init__(str(error))
        self.error, self.attempts = error, attempts


class Progress:
    """Counts failures and seconds since the last progress, so that a transfer with progress is retried.

    :param measure: returns a number that increases with the progress, such as bytes.
    :param step: the smallest increase that counts as progress.
    """

    def __init__(self, measure: Callable[[], int] = lambda: 0, step: int = 1) -> None:
        self._measure, self._step, self._before = measure, step, measure()
        self.failures, self.paused, self.since = 0, 0.0, time.monotonic()

    def failed(self) -> None:
        now = self._measure()
        if now >= self._before + self._step:
            self.failures, self.paused, self._before, self.since = 0, 0.0, now, time.monotonic()
        self.failures += 1


def retry(
    step: Callable[[], T],
    *,
    sleep: Callable[[float], None],
    max_seconds: float = float("inf"),
    attempts: int = ATTEMPTS,
    progress: Progress | None = None,
) -> T:
    """The result of *step*, which is repeated with increasing pauses while it raises `Transient`.

    :param max_seconds: time of attempts and pauses without progress after which no further attempt begins.
    :raises GivenUp: *attempts* failed in a row without progress, or *max_seconds* have passed.
    """
    count = progress or Progress()
    while True:
        try:
            return step()
        except Transient as error:
            count.failed()
            seconds = 0.0 if error.at_once else pause(count.failures, error.wait)
            count.paused += seconds
            spent = max(time.monotonic() - count.since + seconds, count.paused)
            if count.failures >= attempts or spent >= max_seconds:
                raise GivenUp(error, count.failures) from error
        sleep(seconds)
