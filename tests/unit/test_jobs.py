"""Jobs on an engine: order, repetition, digests of workers; engines of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.jobs import engines
from torchkiln.jobs import run as run_module
from torchkiln.jobs.engines import open_engine
from torchkiln.jobs.graph import Job
from torchkiln.jobs.run import Outcome, run
from torchkiln.model.digest import Digest

RIGHT, WRONG = Digest("sha256:" + "1" * 64), "sha256:" + "2" * 64
JOBS = [
    Job(name=name, title=name, arguments=(name,), needs=needs, digest=RIGHT)
    for name, needs in {"base": (), "left": ("base",), "right": ("base",), "image": ("left", "right")}.items()
]
Worker = Callable[[str, int], Outcome]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[[Worker], tuple[list[str], dict[str, Outcome]]]:
    """Run JOBS by a function of name and attempt; returns all attempts in order, and the outcomes."""

    def run_all(worker: Worker) -> tuple[list[str], dict[str, Outcome]]:
        started: list[str] = []
        outcomes: dict[str, Outcome] = {}

        def execute(arguments: tuple[str, ...], *_: Any) -> Outcome:
            started.append(arguments[0])
            return worker(arguments[0], started.count(arguments[0]))

        monkeypatch.setattr(run_module, "execute", execute)
        with ThreadPoolExecutor(1) as engine:
            run(JOBS, engine, lambda job, outcome: outcomes.update({job.name: outcome}), pauses=(0, 0))
        return started, outcomes

    return run_all


def good(_name: str = "", _attempt: int = 0) -> Outcome:
    return Outcome(code=0, digest=RIGHT)


def test_each_job_runs_once_after_those_that_it_needs(ran: Any) -> None:
    started, outcomes = ran(good)
    assert started == ["base", "left", "right", "image"]
    assert {outcome.code for outcome in outcomes.values()} == {0}


def test_a_failed_job_runs_again_and_is_final_after_three_attempts(ran: Any) -> None:
    """What needs it does not run; the rest does."""
    started, outcomes = ran(
        lambda name, attempt: (
            Outcome(code=6) if name == "left" or (name == "base" and attempt == 1) else good()
        )
    )
    assert started == ["base", "base", *["left", "right"], "left", "left"]
    assert {name: outcome.code for name, outcome in outcomes.items()} == {"base": 0, "right": 0, "left": 6}


@pytest.mark.parametrize(("code", "attempts"), [(2, 1), (4, 1), (5, 1), (6, 3), (9, 3), (-9, 3)])
def test_errors_of_the_user_are_not_repeated(ran: Any, code: int, attempts: int) -> None:
    started, _ = ran(lambda name, _: Outcome(code=code))
    assert started == ["base"] * attempts


def test_a_worker_with_another_digest_is_refused(ran: Any) -> None:
    _, outcomes = ran(lambda name, _: Outcome(code=0, digest=WRONG, machine="stranger"))
    assert (outcomes["base"].code, outcomes.keys()) == (12, {"base"})
    assert outcomes["base"].error == f"expected {RIGHT}, but stranger returned {WRONG}"


def test_a_lost_worker_is_an_attempt(ran: Any) -> None:
    def worker(name: str, attempt: int) -> Outcome:
        if name == "base" and attempt == 1:
            raise ConnectionError("killed")
        return good()

    assert ran(worker)[0] == ["base", "base", "left", "right", "image"]


def test_an_engine_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:theirs", engines.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: theirs if self is point else pytest.fail(self.name))
    monkeypatch.setattr(engines, "entry_points", lambda group: [point] if group == engines.GROUP else [])
    with open_engine("theirs:4") as engine:
        assert engine == "4"  # type: ignore[comparison-overlap]
    with pytest.raises(ConfigError, match="no such engine") as caught:
        open_engine("other")
    assert caught.value.hint == "one of: dask, processes, slurm, theirs"


@contextmanager
def theirs(rest: str) -> Iterator[str]:
    yield rest


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    monkeypatch.delitem(__import__("sys").modules, "torchkiln.jobs.on_dask", raising=False)
    with pytest.raises(ToolMissing) as caught:
        open_engine("dask://host:8786")
    assert "pip install 'torchkiln[dask]'" in caught.value.hint
