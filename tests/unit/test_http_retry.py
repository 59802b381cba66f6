"""`util/http/retry.py`: which failures are tried again, how often, and after which pauses."""

from __future__ import annotations

import pytest

from torchkiln.util.http.retry import ATTEMPTS, GivenUp, Progress, Transient, pause, retry


class Server:
    """Fails with each of *errors*, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked, self.slept = list(errors), 0, list[float]()

    def __call__(self) -> str:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_a_transient_failure_is_tried_again_after_growing_pauses() -> None:
    server = Server(Transient("reset"), Transient("HTTP 503", wait=7.0))
    assert retry(server, sleep=server.slept.append) == "answer"
    assert server.slept == [pause(1, 0.0), 7.0]


def test_another_error_is_not_tried_again() -> None:
    server = Server(KeyError("x"))
    with pytest.raises(KeyError):
        retry(server, sleep=server.slept.append)
    assert (server.asked, server.slept) == (1, [])


def test_attempts_have_a_bound() -> None:
    server = Server(*(Transient(f"reset {number}") for number in range(99)))
    with pytest.raises(GivenUp, match=f"reset {ATTEMPTS - 1}") as given_up:
        retry(server, sleep=server.slept.append)
    assert (server.asked, given_up.value.attempts) == (ATTEMPTS, ATTEMPTS)


def test_no_attempt_begins_after_the_patience() -> None:
    server = Server(*(Transient("HTTP 429", wait=30.0) for _ in range(9)))
    with pytest.raises(GivenUp) as given_up:
        retry(server, sleep=server.slept.append, max_seconds=40.0)
    assert (server.slept, given_up.value.attempts) == ([30.0], 2)


def test_a_transfer_that_goes_on_is_not_given_up() -> None:
    have = 0

    def piece() -> int:
        nonlocal have
        have += 10
        if have < 300:
            raise Transient("reset")
        return have

    assert retry(piece, sleep=lambda _: None, progress=Progress(lambda: have)) == 300


def test_progress_that_is_too_small_does_not_count() -> None:
    have = 0

    def byte() -> None:
        nonlocal have
        have += 1
        raise Transient("reset")

    with pytest.raises(GivenUp):
        retry(byte, sleep=lambda _: None, progress=Progress(lambda: have, step=100))
    assert have == ATTEMPTS


def test_what_is_to_be_tried_at_once_has_no_pause() -> None:
    class AtOnce(Transient):
        at_once = True

    server = Server(AtOnce("HTTP 401"))
    retry(server, sleep=server.slept.append)
    assert sum(server.slept) == 0
