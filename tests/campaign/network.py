"""Faults of an index or a network during a build. Each occurs in one run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.campaign.scene import Ran, Trial
from tests.campaign.tracer import Counts, Shared
from tests.campaign.trials import Disturbance
from tests.servers.index_server import Faults

_BIG = "torch-2.7.1"  # a wheel whose layer is made during the download
_SMALL = "small_03"  # several small wheels share a layer, and are downloaded first


def faults() -> Iterator[Disturbance]:
    """Each fault with the expected result."""
    again = r".* \(6 attempts\)\n.*then run the command again; downloads resume"
    for only, which in ((_BIG, "a big wheel"), (_SMALL, "a small wheel")):
        yield _fault(f"wrong bytes in {which}", 6, r"error: \S+\.whl: .*\S", only=only, flip=1_000)
    yield _fault(
        "wrong bytes in the middle of a wheel", 6, r"error: torch\S+: .*\S", only=_BIG, flip=9_000_000
    )
    yield _fault("file too long", 6, r"\d+ bytes on the server", extra=b"more")
    yield _fault("Content-Length too large", 6, r"\d+ bytes on the server", only=_SMALL, length_error=7)
    yield _fault("Content-Length too small", 6, r"\d+ bytes on the server", only=_SMALL, length_error=-7)
    yield _fault("bodies break off", 0, "", short=[100_000, 5_000, 1, 0, 900_000])
    yield _fault("connections reset", 0, "", only=_BIG, resets=[1_500_000, 3_000_000, 1])
    yield _fault("connection reset always", 6, "connection reset by peer" + again, resets=[0] * 500)
    yield _fault("some 5xx", 0, "", errors=[500, 502, 503, 504], page_errors=[503, 500])
    yield _fault("5xx always", 6, "HTTP 503" + again, errors=[503] * 500)
    yield _fault("5xx for every page", 6, "HTTP 500" + again, page_errors=[500] * 500)
    yield _fault("429 with Retry-After", 0, "", errors=[429, 429], retry_after="1")
    yield _fault("file gone", 6, "HTTP 404 Not Found\n.*does not have this file", only=_BIG, deleted=True)
    yield _fault("redirect loop", 6, "redirect loop: more than 10 redirects", loop=True)
    yield _fault("redirect loop for pages", 6, "redirect loop: more than 10 redirects", page_loop=True)
    yield _fault("garbage for pages", 6, "not a project page", page_body=b"\x00\xff<<a href" * 99)
    yield _fault(
        "garbage as JSON",
        6,
        "not a project page",
        page_body=b'{"meta": {',
        page_type="application/vnd.pypi.simple.v1+json",
    )
    yield _fault("no ranges", 0, "", no_ranges=True, short=[2_000_000])
    yield _fault("wrong Content-Range", 6, "requested bytes from" + ".*" + again, only=_BIG, shift=1)
    yield _fault("slow index", 0, "", pace=3e6, silent=3.0, only=_BIG)
    yield _network(
        "network lost in the middle",
        6,
        "connection (refused|reset|closed)" + ".*" + again,
        _vanishes,
    )
    yield _network("Ctrl-C while the index is silent", 130, "error: interrupted", _silent)


def _fault(name: str, code: int, sentence: str, **fault: Any) -> Disturbance:
    def run(trial: Trial) -> Ran:
        _set(trial, **fault)
        return trial.run()

    return _network(name, code, sentence, run)


def _network(name: str, code: int, sentence: str, run: Callable[[Trial], Ran]) -> Disturbance:
    return Disturbance(
        group="network",
        name=name,
        codes=(code,),
        sentence=f"(?s){sentence}",
        start="network",
        run=run,
        undo=_restore,
    )


def _set(trial: Trial, **fault: Any) -> None:
    for name, value in fault.items():
        setattr(trial.server.faults, name, value)


def _restore(trial: Trial) -> None:
    trial.server.faults = Faults()


def _vanishes(trial: Trial) -> Ran:
    """As soon as bytes of a big wheel arrive, cut every connection, and accept no new connections."""
    trial.server.faults.pace = 4e6

    def act(shared: Shared, process: subprocess.Popen[str]) -> Counts:
        _wait_for_bytes(trial, process)
        trial.server.faults.down = True
        return shared.flying()

    return trial.run(act=act)


def _silent(trial: Trial) -> Ran:
    """Send SIGINT while the index sends nothing. The build must end without waiting for the index."""
    _set(trial, silent=90.0, only=_BIG)

    def act(shared: Shared, process: subprocess.Popen[str]) -> Counts:
        _wait_for_bytes(trial, process)
        time.sleep(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        return shared.flying()

    return trial.run(act=act)


def _wait_for_bytes(trial: Trial, process: subprocess.Popen[str]) -> None:
    def has_come() -> bool:
        answers = (
            sent for sent in trial.server.sent if _BIG in sent.path and sent.requested in ("", "bytes=0-")
        )
        return any(sent.count for sent in answers)

    while process.poll() is None and not has_come():
        time.sleep(0.01)
