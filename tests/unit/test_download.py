"""Downloads against a real server with every fault that indexes have; and which failures are tried again."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.registry import free_port
from tests.standin.index_server import IndexServer
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index import download
from torchkiln.index.download import Downloads
from torchkiln.index.pages import Pages
from torchkiln.index.settings import index_settings
from torchkiln.index.verified import verify
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.http.retry import ATTEMPTS, GivenUp, Progress, Transient, pause, retry

PAYLOAD = os.urandom(3_000_000)


class Bench:
    """A server with one wheel, and downloads from it that never really sleep."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        self.server, self.part, self.store = server, root / "x.part", Store(root / "cache")
        filename, self.data = server.add("simple", "x", "1", payload=PAYLOAD)
        self.wheel = LockedWheel(
            name="x",
            version="1",
            filename=filename,
            sha256=hashlib.sha256(self.data).hexdigest(),
            size=len(self.data),
            index=Source.DEFAULT,
        )
        self.pages = Pages(index_settings({}, pip_config="", default_url=server.url("simple")), self.store)
        self.slept: list[float] = []
        self.downloads = Downloads(self.pages, sleep=self.slept.append)
        self.progress: list[int] = []

    def fetch(self, stop_after: int = 1 << 60) -> bytes:
        self.downloads.fetch(
            self.wheel,
            self.part,
            on_progress=self.progress.append,
            cancelled=lambda: sum(self.progress) >= stop_after,
        )
        return self.part.read_bytes()

    def ranges(self) -> list[str]:
        return [asked for _, path, asked in self.server.asked if "/files/" in path]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with IndexServer() as server:
        yield Bench(server, tmp_path)


def test_a_file_arrives_whole_and_every_byte_is_reported(bench: Bench) -> None:
    assert bench.fetch() == bench.data
    assert sum(bench.progress) == len(bench.data)
    verify(bench.wheel, bench.part)


@pytest.mark.parametrize("no_ranges", [False, True])
def test_a_large_file_is_asked_for_as_a_range(
    bench: Bench, no_ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even from its start; a server that knows none sends all of it, and one with another file is refused."""
    monkeypatch.setattr(download, "_LARGE", len(bench.data))
    bench.server.faults.no_ranges = no_ranges

    assert bench.fetch() == bench.data
    assert bench.ranges() == ["bytes=0-"]

    bench.part.unlink()
    bench.server.faults.extra = b"x"
    with pytest.raises(BadWheel, match="the lock has"):
        bench.fetch()


def test_a_second_run_goes_on_from_where_the_first_was_stopped(bench: Bench) -> None:
    kept = len(bench.fetch(stop_after=1))
    assert 0 < kept < len(bench.data)
    bench.progress.clear()

    assert bench.fetch() == bench.data
    assert bench.progress[0] == kept
    assert bench.ranges() == ["", f"bytes={kept}-"]


def test_a_broken_connection_is_taken_up_where_it_broke(bench: Bench) -> None:
    bench.server.faults.short = [1000, 70_000]

    assert bench.fetch() == bench.data
    assert bench.ranges() == ["", "bytes=1000-", "bytes=71000-"]


def test_a_line_that_breaks_often_still_brings_the_file(bench: Bench) -> None:
    """Only breaks without progress count against a server."""
    bench.server.faults.short = [100_000] * 12

    assert bench.fetch() == bench.data


def test_a_server_without_ranges_sends_the_beginning_again_and_the_file_never_shrinks(bench: Bench) -> None:
    bench.server.faults.no_ranges = True
    bench.server.faults.short = [1_500_000]

    assert bench.fetch() == bench.data
    assert sum(bench.progress) == len(bench.data)
    assert min(bench.progress) > 0
    assert bench.downloads.tail(bench.wheel, 10) is None


def test_the_tail_is_had_by_one_range_request(bench: Bench) -> None:
    assert bench.downloads.tail(bench.wheel, 22) == bench.data[-22:]
    assert bench.downloads.tail(bench.wheel, 1 << 40) == bench.data
    assert bench.ranges()[0] == f"bytes={len(bench.data) - 22}-{len(bench.data) - 1}"


def test_server_errors_are_waited_out_as_long_as_the_server_asks(bench: Bench) -> None:
    bench.server.faults.errors = [500, 429, 503]
    bench.server.faults.retry_after = "3"

    assert bench.fetch() == bench.data
    assert sum(bench.slept) >= 9


def test_a_server_that_never_answers_well_ends_the_run_and_keeps_what_came(bench: Bench) -> None:
    kept = len(bench.fetch(stop_after=1))
    bench.progress.clear()
    bench.server.faults.errors = [502] * 50
    with pytest.raises(BuildFailed, match="HTTP 502") as caught:
        bench.fetch()

    assert bench.part.stat().st_size == kept
    assert "run again to resume the download" in caught.value.hint


@pytest.mark.parametrize(("who", "told"), [("index", ""), ("proxy", "proxy: ")])
def test_who_cannot_be_reached_is_told_and_no_empty_file_stays(who: str, told: str, bench: Bench) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    if who == "index":
        place = replace(bench.pages.find_all([bench.wheel])[bench.wheel], url=f"{nowhere}/x.whl")
        bench.pages.find = lambda *_, **__: place  # type: ignore[method-assign]
    else:
        bench.pages.find_all([bench.wheel])  # the pages are known, the file is to come
        bench.pages.session.trust_env = False
        bench.pages.session.proxies = {"http": nowhere}
    with pytest.raises(BuildFailed, match=rf": {told}connection refused \(6 attempts\)$") as caught:
        bench.fetch()

    assert "check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index" in caught.value.hint
    assert not bench.part.exists()


def test_who_gives_up_before_a_byte_came_leaves_no_file(bench: Bench) -> None:
    bench.downloads.fetch(bench.wheel, bench.part, on_progress=bench.progress.append, cancelled=lambda: True)

    assert not bench.part.exists()


@pytest.mark.parametrize("extra", [b"x", b"y" * 2_000_000])
def test_a_file_of_another_length_is_refused_before_its_body(bench: Bench, extra: bytes) -> None:
    bench.server.faults.extra = extra
    with pytest.raises(BadWheel, match="the lock has"):
        bench.fetch()
    assert not bench.part.exists()
    with pytest.raises(BadWheel, match="the lock has"):
        bench.downloads.tail(bench.wheel, 10)


def test_redirects_in_a_circle_are_named(bench: Bench) -> None:
    bench.server.faults.loop = True
    with pytest.raises(BuildFailed, match="redirect loop: more than 10 redirects"):
        bench.fetch()


def test_an_address_that_is_gone_is_looked_up_again(bench: Bench) -> None:
    """An index moves its files; the hash is the identity, not the address."""
    bench.fetch(stop_after=1)
    bench.server.moved = "/elsewhere"
    bench.progress.clear()

    assert bench.fetch() == bench.data


def test_a_file_that_is_really_gone_says_so(bench: Bench) -> None:
    bench.fetch(stop_after=1)
    bench.server.files.clear()
    with pytest.raises(BuildFailed) as caught:
        bench.fetch()
    assert caught.value.hint


@pytest.mark.parametrize("status", [401, 403, 410])
def test_refusals_end_the_run_at_once(bench: Bench, status: int) -> None:
    bench.server.faults.errors = [status] * 50
    with pytest.raises(BuildFailed, match=f"HTTP {status}"):
        bench.fetch()
    assert bench.slept == []


def test_addresses_are_remembered(bench: Bench) -> None:
    bench.pages.find_all([bench.wheel])
    before = len(bench.server.asked)
    bench.pages.find_all([bench.wheel])

    assert len(bench.server.asked) == before


def test_a_page_with_an_etag_is_not_sent_twice(bench: Bench) -> None:
    bench.server.etags = True
    for _ in range(2):
        bench.pages.files("x", Source.DEFAULT, {bench.wheel.sha256})

    assert bench.server.counts[304] == 1


def test_a_size_is_measured_by_head(bench: Bench) -> None:
    place = bench.pages.find(bench.wheel.filename, bench.wheel.sha256, "x", Source.DEFAULT)

    assert bench.pages.measure(replace(place, size=None)).size == len(bench.data)
    assert bench.server.asked[-1][0] == "HEAD"


def test_fetch_wheel_adopts_only_what_was_locked(bench: Bench) -> None:
    place = bench.downloads.fetch_wheel(bench.wheel, bench.store)
    assert place.read_bytes() == bench.data

    liar = replace(bench.wheel, sha256="0" * 64)
    bench.pages.find = lambda *_, **__: replace(  # type: ignore[method-assign]
        Pages.find(bench.pages, bench.wheel.filename, bench.wheel.sha256, "x", Source.DEFAULT)
    )
    with pytest.raises(BadWheel, match="sha256"):
        bench.downloads.fetch_wheel(liar, bench.store)
    assert not list(bench.store.wheel(liar).parent.glob("*"))


def test_a_spoilt_remainder_of_an_earlier_run_is_fetched_anew(bench: Bench) -> None:
    part = bench.store.wheel(bench.wheel).with_name(bench.wheel.filename + ".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"spoilt")

    assert bench.downloads.fetch_wheel(bench.wheel, bench.store).read_bytes() == bench.data


def test_a_folder_that_cannot_be_written_is_told_without_a_traceback(bench: Bench) -> None:
    bench.part.mkdir()
    with pytest.raises(BuildFailed, match="cannot be written"):
        bench.fetch()


def test_a_silent_server_does_not_hold_up_who_gives_up(bench: Bench) -> None:
    """The read that waits for bytes ends when the work is called off, not when the server speaks again."""
    bench.server.faults.silent = 60.0
    given_up = threading.Event()
    give_up = threading.Timer(0.5, given_up.set)

    def progress(count: int) -> None:
        if not bench.progress:
            give_up.start()
        bench.progress.append(count)

    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(
            bench.downloads.fetch,
            bench.wheel,
            bench.part,
            on_progress=progress,
            cancelled=given_up.is_set,
        )
        fetching.result(timeout=300)
    assert 0 < sum(bench.progress) < len(bench.data)


@pytest.mark.parametrize("accident", ["cut", "deleted"])
def test_a_file_that_is_spoilt_while_it_arrives(accident: str, bench: Bench) -> None:
    """Whoever reads behind would wait for ever for what was cut off."""

    def spoil(count: int) -> None:
        if accident == "deleted":
            bench.part.unlink(missing_ok=True)
        elif bench.part.stat().st_size > 1_500_000:
            os.truncate(bench.part, 1_000)

    with pytest.raises(BuildFailed, match=r"^x\.part was truncated or deleted during the download$"):
        bench.downloads.fetch(bench.wheel, bench.part, on_progress=spoil, cancelled=lambda: False)


def test_garbage_is_not_kept_as_a_page(bench: Bench) -> None:
    """Pages without an ETag are taken as they were for ten minutes; the next run would still read it."""
    bench.server.faults.page_type = "application/vnd.pypi.simple.v1+json"
    bench.server.faults.page_body = b'{"meta": {'
    with pytest.raises(BuildFailed, match="not a project page"):
        bench.fetch()
    bench.server.faults.page_body = None
    bench.server.faults.page_type = "text/html"
    assert bench.fetch() == bench.data


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
