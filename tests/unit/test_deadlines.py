"""Time limits of requests to a server that sends one byte at a time, without end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.hostile_index import HostileIndex, slowly
from torchkiln.util.http.deadlines import Overdue
from torchkiln.util.http.session import LimitedSession, Network


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a response whose header never ends."""
    with HostileIndex(lambda _: slowly(b"HTTP/1.1 200 OK\r\nX: ", b"y")) as index:
        yield index.url


@pytest.fixture
def session() -> Iterator[LimitedSession]:
    with LimitedSession(Network()) as opened:
        yield opened


def test_a_request_has_a_limit(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue, match=r"in 0\.5 seconds"), session.deadlines.limit(0.5):
        session.get(url)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_limit_that_passes_before_the_connection(session: LimitedSession, url: str, requests: int) -> None:
    """Even if an attempt begins when no time is left, each of its connections is shut down."""
    for _ in range(requests):
        with pytest.raises(Overdue), session.deadlines.limit(0.0):
            session.get(url)


def test_a_limit_inside_of_one_that_has_passed(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue), session.deadlines.limit(0.0), session.deadlines.limit(60.0):
        session.get(url)


def test_within_caps_every_limit(session: LimitedSession, url: str) -> None:
    with session.deadlines.within(0.2):
        for _ in range(2):
            with pytest.raises(Overdue), session.deadlines.limit(60.0):
                session.get(url)


def test_after_a_limit_the_thread_has_none(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue), session.deadlines.limit(0.0):
        session.get(url)
    with HostileIndex(lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])) as index:
        assert session.get(index.url).content == b"ok"
