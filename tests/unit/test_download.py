"""Downloads from a local server with the faults of real indexes, and which failures are retried."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.registry import free_port
from tests.servers.index_server import IndexServer
from tests.stored import locked_file
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index import download
from torchkiln.index.download import Downloads
from torchkiln.index.pages import Pages
from torchkiln.index.settings import index_settings
from torchkiln.index.verified import verify
from torchkiln.model.cell import Source
from torchkiln.model.progress import Transfer
from torchkiln.store.store import Store
from torchkiln.util.http.retry import ATTEMPTS, GivenUp, Progress, Transient, pause, retry

PAYLOAD = os.urandom(3_000_000)


class DownloadScene:
    """A server with one wheel, and downloads from it without real pauses."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        self.server, self.part, self.store = server, root / "x.part", Store(root / "cache")
        filename, self.data = server.add("simple", "x", "1", payload=PAYLOAD)
        self.wheel = locked_file("x", "1", filename, self.data)
        self.pages = Pages(index_settings({}, pip_config="", default_url=server.url("simple")), self.store)
        self.slept: list[float] = []
        self.downloads = Downloads(self.pages, sleep=self.slept.append)
        self.progress: list[int] = []

    def fetch(self, stop_after: int = 1 << 60) -> bytes:
        self.downloads.fetch(
            self.wheel,
            self.part,
            Transfer(self.progress.append, lambda: sum(self.progress) >= stop_after),
        )
        return self.part.read_bytes()

    def ranges(self) -> list[str]:
        return [byte_range for _, path, byte_range in self.server.requests if "/files/" in path]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[DownloadScene]:
    with IndexServer() as server:
        yield DownloadScene(server, tmp_path)


def test_a_file_is_downloaded_completely_with_progress(scene: DownloadScene) -> None:
    assert scene.fetch() == scene.data
    assert sum(scene.progress) == len(scene.data)
    verify(scene.wheel, scene.part)


@pytest.mark.parametrize("no_ranges", [False, True])
def test_a_large_file_is_requested_as_a_range(
    scene: DownloadScene, no_ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request has `Range: bytes=0-`; a server may ignore it. A file of another size is refused."""
    monkeypatch.setattr(download, "_LARGE", len(scene.data))
    scene.server.faults.no_ranges = no_ranges

    assert scene.fetch() == scene.data
    assert scene.ranges() == ["bytes=0-"]

    scene.part.unlink()
    scene.server.faults.extra = b"x"
    with pytest.raises(BadWheel, match="the lock has"):
        scene.fetch()


def test_a_broken_connection_is_resumed(scene: DownloadScene) -> None:
    scene.server.faults.short = [1000, 70_000]

    assert scene.fetch() == scene.data
    assert scene.ranges() == ["", "bytes=1000-", "bytes=71000-"]


def test_a_connection_that_breaks_often_still_completes_the_file(scene: DownloadScene) -> None:
    """Attempts that make progress do not count as failed."""
    scene.server.faults.short = [100_000] * 12

    assert scene.fetch() == scene.data


def test_a_server_without_ranges_sends_the_beginning_again_and_the_file_never_shrinks(
    scene: DownloadScene,
) -> None:
    scene.server.faults.no_ranges = True
    scene.server.faults.short = [1_500_000]

    assert scene.fetch() == scene.data
    assert sum(scene.progress) == len(scene.data)
    assert min(scene.progress) > 0
    assert scene.downloads.tail(scene.wheel, 10) is None


def test_the_tail_needs_one_range_request(scene: DownloadScene) -> None:
    assert scene.downloads.tail(scene.wheel, 22) == scene.data[-22:]
    assert scene.downloads.tail(scene.wheel, 1 << 40) == scene.data
    assert scene.ranges()[0] == f"bytes={len(scene.data) - 22}-{len(scene.data) - 1}"


def test_retry_after_is_respected(scene: DownloadScene) -> None:
    scene.server.faults.errors = [500, 429, 503]
    scene.server.faults.retry_after = "3"

    assert scene.fetch() == scene.data
    assert sum(scene.slept) >= 9


def test_permanent_server_errors_end_the_run_and_keep_received_bytes(scene: DownloadScene) -> None:
    received = len(scene.fetch(stop_after=1))
    scene.progress.clear()
    scene.server.faults.errors = [502] * 50
    with pytest.raises(BuildFailed, match="HTTP 502") as caught:
        scene.fetch()

    assert scene.part.stat().st_size == received
    assert "then run the command again; downloads resume" in caught.value.hint


@pytest.mark.parametrize(("who", "prefix"), [("index", ""), ("proxy", "proxy: ")])
def test_an_unreachable_host_is_reported_and_no_empty_file_stays(
    who: str, prefix: str, scene: DownloadScene
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    if who == "index":
        place = replace(scene.pages.find_all([scene.wheel])[scene.wheel], url=f"{nowhere}/x.whl")
        scene.pages.find = lambda *_, **__: place  # type: ignore[method-assign]
    else:
        scene.pages.find_all([scene.wheel])  # the pages are read, the file is not
        scene.pages.session.trust_env = False
        scene.pages.session.proxies = {"http": nowhere}
    with pytest.raises(BuildFailed, match=rf": {prefix}connection refused \(6 attempts\)$") as caught:
        scene.fetch()

    assert "check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index" in caught.value.hint
    assert not scene.part.exists()


def test_a_download_cancelled_before_the_first_byte_leaves_no_file(scene: DownloadScene) -> None:
    scene.downloads.fetch(scene.wheel, scene.part, Transfer(scene.progress.append, lambda: True))

    assert not scene.part.exists()


@pytest.mark.parametrize("extra", [b"x", b"y" * 2_000_000])
def test_a_file_of_another_length_is_refused_before_its_body(scene: DownloadScene, extra: bytes) -> None:
    scene.server.faults.extra = extra
    with pytest.raises(BadWheel, match="the lock has"):
        scene.fetch()
    assert not scene.part.exists()
    with pytest.raises(BadWheel, match="the lock has"):
        scene.downloads.tail(scene.wheel, 10)


def test_a_redirect_loop_is_reported(scene: DownloadScene) -> None:
    scene.server.faults.loop = True
    with pytest.raises(BuildFailed, match="redirect loop: more than 10 redirects"):
        scene.fetch()


def test_a_url_that_is_gone_is_looked_up_again(scene: DownloadScene) -> None:
    """An index may move a file to another URL; the hash identifies the file."""
    scene.fetch(stop_after=1)
    scene.server.moved = "/elsewhere"
    scene.progress.clear()

    assert scene.fetch() == scene.data


def test_a_deleted_file_is_reported(scene: DownloadScene) -> None:
    scene.fetch(stop_after=1)
    scene.server.files.clear()
    with pytest.raises(BuildFailed) as caught:
        scene.fetch()
    assert caught.value.hint


def test_urls_are_cached(scene: DownloadScene) -> None:
    scene.pages.find_all([scene.wheel])
    before = len(scene.server.requests)
    scene.pages.find_all([scene.wheel])

    assert len(scene.server.requests) == before


def test_a_page_with_an_etag_is_not_sent_twice(scene: DownloadScene) -> None:
    scene.server.etags = True
    for _ in range(2):
        scene.pages.files("x", Source.DEFAULT, {scene.wheel.sha256})

    assert scene.server.counts[304] == 1


@pytest.mark.parametrize("no_ranges", [False, True])
def test_a_size_is_not_that_of_a_head(scene: DownloadScene, no_ranges: bool) -> None:
    scene.server.faults.no_ranges, scene.server.faults.head_error = no_ranges, 7
    place = scene.pages.find(scene.wheel)

    assert scene.pages.measure(replace(place, size=None)).size == len(scene.data)
    with pytest.raises(BuildFailed, match="size mismatch"):
        scene.pages.measure(replace(place, size=len(scene.data) + 7))


def test_fetch_wheel_adopts_only_the_locked_file(scene: DownloadScene) -> None:
    place = scene.downloads.fetch_wheel(scene.wheel, scene.store)
    assert place.read_bytes() == scene.data

    wrong_hash = replace(scene.wheel, sha256="0" * 64)
    scene.pages.find = lambda *_, **__: Pages.find(scene.pages, scene.wheel)  # type: ignore[method-assign]
    with pytest.raises(BadWheel, match="sha256"):
        scene.downloads.fetch_wheel(wrong_hash, scene.store)
    assert not list(scene.store.wheel(wrong_hash).parent.glob("*"))


def test_a_damaged_partial_file_is_downloaded_again(scene: DownloadScene) -> None:
    part = scene.store.wheel(scene.wheel).with_name(scene.wheel.filename + ".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"spoilt")

    assert scene.downloads.fetch_wheel(scene.wheel, scene.store).read_bytes() == scene.data


def test_an_unwritable_folder_is_reported_without_a_traceback(scene: DownloadScene) -> None:
    scene.part.mkdir()
    with pytest.raises(BuildFailed, match="cannot be written"):
        scene.fetch()


def test_a_cancelled_download_does_not_wait_for_a_silent_server(scene: DownloadScene) -> None:
    """Cancelling also ends a read that waits for data."""
    scene.server.faults.silent = 60.0
    cancelled = threading.Event()
    give_up = threading.Timer(0.5, cancelled.set)

    def progress(count: int) -> None:
        if not scene.progress:
            give_up.start()
        scene.progress.append(count)

    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(
            scene.downloads.fetch, scene.wheel, scene.part, Transfer(progress, cancelled.is_set)
        )
        fetching.result(timeout=300)
    assert 0 < sum(scene.progress) < len(scene.data)


@pytest.mark.parametrize("accident", ["cut", "deleted"])
def test_a_file_damaged_during_the_download(accident: str, scene: DownloadScene) -> None:
    """Without the error, a concurrent reader would wait for the missing bytes forever."""

    def spoil(count: int) -> None:
        if accident == "deleted":
            scene.part.unlink(missing_ok=True)
        elif scene.part.stat().st_size > 1_500_000:
            os.truncate(scene.part, 1_000)

    with pytest.raises(BuildFailed, match=r"^x\.part was truncated or deleted during the download$"):
        scene.downloads.fetch(scene.wheel, scene.part, Transfer(spoil))


def test_garbage_is_not_cached_as_a_page(scene: DownloadScene) -> None:
    """A page without an ETag is cached for ten minutes, and the next run would read the garbage again."""
    scene.server.faults.page_type = "application/vnd.pypi.simple.v1+json"
    scene.server.faults.page_body = b'{"meta": {'
    with pytest.raises(BuildFailed, match="not a project page"):
        scene.fetch()
    scene.server.faults.page_body = None
    scene.server.faults.page_type = "text/html"
    assert scene.fetch() == scene.data


class Server:
    """A server that fails with each of *errors* in turn, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls, self.slept = list(errors), 0, list[float]()

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_a_transient_failure_is_retried_with_growing_pauses() -> None:
    server = Server(Transient("reset"), Transient("HTTP 503", wait=7.0))
    assert retry(server, sleep=server.slept.append) == "answer"
    assert server.slept == [pause(1, 0.0), 7.0]


def test_another_error_is_not_retried() -> None:
    server = Server(KeyError("x"))
    with pytest.raises(KeyError):
        retry(server, sleep=server.slept.append)
    assert (server.calls, server.slept) == (1, [])


def test_the_number_of_attempts_is_limited() -> None:
    server = Server(*(Transient(f"reset {number}") for number in range(99)))
    with pytest.raises(GivenUp, match=f"reset {ATTEMPTS - 1}") as cancelled:
        retry(server, sleep=server.slept.append)
    assert (server.calls, cancelled.value.attempts) == (ATTEMPTS, ATTEMPTS)


def test_no_attempt_begins_after_the_time_limit() -> None:
    server = Server(*(Transient("HTTP 429", wait=30.0) for _ in range(9)))
    with pytest.raises(GivenUp) as cancelled:
        retry(server, sleep=server.slept.append, max_seconds=40.0)
    assert (server.slept, cancelled.value.attempts) == ([30.0], 2)


def test_a_transfer_with_progress_is_not_given_up() -> None:
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


def test_an_immediate_retry_has_no_pause() -> None:
    class AtOnce(Transient):
        at_once = True

    server = Server(AtOnce("HTTP 401"))
    retry(server, sleep=server.slept.append)
    assert sum(server.slept) == 0
