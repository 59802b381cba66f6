"""What `smoke` and `gate` do, by calls of the library: a session runs the suite, the gate judges its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.press import Press, account_of, press
from tests.reports import TAG, TIERS, host, said
from torchkiln.errors import ConfigError, GateRefused
from torchkiln.gate.gate import clear
from torchkiln.gate.inputs import GateInputs
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes.command import Command, Exited, RuntimeSettings, Streams
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke import session as sessions
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SilentSmokeListener, SmokeRequest, SmokeSession, image_and_lock
from torchkiln.smoke.suite import load_suite
from torchkiln.util.places import ROOT

MATRIX = matrix.read(ROOT / "matrix.yaml", facts.load())
BELOW = {name: tier for name, tier in TIERS.items() if tier == 0}


@dataclass
class Recorder(SilentSmokeListener):
    """A listener with a memory."""

    heard: list[str] = field(default_factory=list)

    def starts(self, request: SmokeRequest) -> None:
        self.heard.append(f"starts {request.runtime}")

    def answered(self, report: SmokeReport) -> None:
        self.heard.append(f"answered {report.verdict}")


@dataclass
class Scripted:
    """A runtime, and an image in it: each command says the same lines; what was asked is noted."""

    lines: bytes
    what: str = "for tests"
    in_engine: bool = False
    interactive: bool = False
    runtime: str = "scripted"
    asked: list[tuple[str | None, RuntimeSettings, Command]] = field(default_factory=list)
    ready_for: tuple[str | None, RuntimeSettings] = (None, RuntimeSettings())

    def check(self, command: Command, settings: RuntimeSettings) -> None: ...

    def ready(self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener) -> Scripted:
        self.ready_for = (source.read().manifest, settings)
        return self

    def captured(self, command: Command, *, timeout_s: float) -> Exited:
        self.asked.append((*self.ready_for, command))
        return Exited(code=0, stdout=self.lines, stderr=b"", timed_out=False)

    def passed_through(self, command: Command, streams: Streams) -> int:
        raise NotImplementedError

    def killed_for_memory(self) -> int:
        return 0


@dataclass(frozen=True)
class Bench:
    """A built image with its lock, a runtime, and a session."""

    press: Press
    image: ImageOnDisk
    locked: LockedCell
    runtime: Scripted
    session: SmokeSession
    recorder: Recorder

    def request(self, **more: object) -> SmokeRequest:
        return replace(
            SmokeRequest(checks=Checks(suite=load_suite(self.press.suite)), runtime="scripted"),
            **more,  # type: ignore[arg-type]
        )

    def inputs(self, *given: Path) -> GateInputs:
        """By a policy that demands tier 0."""
        return GateInputs(
            policy=Policy(tiers=(0,), checks=()),
            suite=load_suite(self.press.suite),
            runs=KeptRuns(store=self.press.store, listener=SilentSmokeListener()),
            given=given,
        )


def event(name: str, outcome: str = "passed") -> Mapping[str, object]:
    told = {"event": "finding", "id": name, "tier": 0, "seconds": 1.0, "outcome": outcome, "message": ""}
    return told | {"measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    desk = press(tmp_path / "desk")
    found = desk.build()
    image, _, locked = image_and_lock(TAG, desk.layout, desk.folder / "images")
    assert image == found
    told = host() | {"event": "host", "image_json_sha256": account_of(image)}
    runtime, recorder = Scripted(said(told, *map(event, BELOW), {"event": "end"})), Recorder()
    monkeypatch.setitem(RUNTIMES, "scripted", runtime)  # type: ignore[arg-type]
    monkeypatch.setattr(sessions, "pytest_wheels", lambda *_: tmp_path)  # pip would ask an index
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    session = SmokeSession(
        images=desk.folder / "images", matrix=lambda: MATRIX, store=desk.store, listener=recorder
    )
    return Bench(desk, image, locked, runtime, session, recorder)


def test_a_library_caller_runs_the_suite_and_asks_the_gate(bench: Bench) -> None:
    """As `smoke TAG --tier 0` and `gate TAG` do, with nothing of the command line."""
    with pytest.raises(GateRefused, match="import"):
        clear(bench.inputs().judge(bench.image, bench.locked))

    report = bench.session.run(TAG, bench.press.layout, bench.request())
    assert (report.verdict, report.image, report.tag) == ("pass", bench.image.manifest, TAG)
    assert {finding.id for finding in report.findings} == set(BELOW)
    assert report.runtime == "scripted"
    (manifest, settings, command), *_ = bench.runtime.asked
    assert manifest == bench.image.manifest
    assert settings.env == ("NCCL_DEBUG=INFO",)
    assert (command.user, command.workdir, command.entrypoint) == ("0:0", "/", False)
    assert all(not bind.writable for bind in command.binds)

    cleared = clear(bench.inputs().judge(bench.image, bench.locked))
    assert cleared.result.image == bench.image.manifest


def test_the_same_request_is_answered_by_the_run_that_is_kept(bench: Bench) -> None:
    """By whatever name the image is asked for; with `force` it runs again."""
    first = bench.session.run(TAG, bench.press.layout, bench.request())
    assert bench.session.run(bench.image.manifest, bench.press.layout, bench.request()) == first
    assert bench.recorder.heard == ["starts scripted", "answered pass"]
    bench.session.run(TAG, bench.press.layout, bench.request(force=True))
    assert len(bench.runtime.asked) == 2


def test_a_run_that_fails_is_a_report_and_no_answer(bench: Bench) -> None:
    bench.runtime.lines = said(*(event(name, "failed") for name in BELOW))
    assert bench.session.run(TAG, bench.press.layout, bench.request()).verdict == "fail"
    with pytest.raises(GateRefused, match="failed"):
        clear(bench.inputs().judge(bench.image, bench.locked))
    bench.session.run(TAG, bench.press.layout, bench.request())
    assert bench.recorder.heard == ["starts scripted"] * 2


def test_a_report_of_elsewhere_counts_by_its_signature_alone(bench: Bench) -> None:
    """Given as a folder; a policy without `strangers` wants to know who made it."""
    desk = bench.press
    reports = desk.folder / "reports"
    reports.mkdir()
    desk.write(desk.report(bench.image), "reports/one.json")
    with pytest.raises(GateRefused, match="is not signed"):
        clear(bench.inputs(reports).judge(bench.image, bench.locked))
    desk.keep(desk.report(bench.image))
    assert clear(bench.inputs(reports).judge(bench.image, bench.locked)).result.image == bench.image.manifest


def test_a_check_that_the_suite_has_not_is_refused_at_once(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no check named nothing-like-it"):
        Checks(suite=load_suite(bench.press.suite), only=("nothing-like-it",))
