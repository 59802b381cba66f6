"""`smoke` and `gate` as a library: a session runs the suite; the gate judges the recorded runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.listeners import SilentSmokeListener
from tests.publisher import Publisher, account_of, new_publisher
from tests.reports import TAG, TIERS, host, json_lines
from tests.smoke_suites import suite_with
from torchkiln.errors import ConfigError, GateRefused
from torchkiln.gate.gate import GateResult, clear
from torchkiln.gate.inputs import GateInputs
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import root_of
from torchkiln.runtimes import driver
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Command, Exited, RuntimeSettings, Streams
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke import session as sessions
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.report import from_json, to_json, to_lines
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession, cut_wheels, image_and_lock, tier_here
from torchkiln.smoke.suite import load_suite
from torchkiln.util.places import ROOT

MATRIX = matrix.read(ROOT / "matrix.yaml", facts.load())
BELOW = {name: tier for name, tier in TIERS.items() if tier == 0}


@dataclass
class Recorder(SilentSmokeListener):
    """A listener that records its calls."""

    calls: list[str] = field(default_factory=list)

    def starts(self, request: SmokeRequest) -> None:
        self.calls.append(f"starts {request.runtime}")

    def answered(self, report: SmokeReport) -> None:
        self.calls.append(f"answered {report.verdict}")

    def finished(self, finding: Finding) -> None:
        self.calls.append(f"{finding.id} {finding.outcome}")


@dataclass
class Scripted:
    """A fake runtime with an image. It records each command, which always prints the same lines."""

    lines: bytes
    what: str = "for tests"
    in_engine: bool = False
    runtime: str = "scripted"
    commands: list[tuple[str | None, RuntimeSettings, Command]] = field(default_factory=list)
    ready_for: tuple[str | None, RuntimeSettings] = (None, RuntimeSettings())

    def check(self, command: Command, settings: RuntimeSettings) -> None: ...

    def ready(self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener) -> Scripted:
        self.ready_for = (source.read().manifest, settings)
        return self

    def captured(self, command: Command, *, timeout_s: float, on_line: OnLine) -> Exited:
        self.commands.append((*self.ready_for, command))
        for line in self.lines.splitlines():
            on_line(line)
        return Exited(code=0, stdout=b"", stderr=b"", timed_out=False)

    def passed_through(self, command: Command, streams: Streams) -> int:
        raise NotImplementedError

    def killed_for_memory(self) -> int:
        return 0


@dataclass(frozen=True)
class SmokeScene:
    """A built image with its lock, a runtime, and a session."""

    publisher: Publisher
    image: ImageOnDisk
    locked: LockedCell
    runtime: Scripted
    session: SmokeSession
    recorder: Recorder

    def request(self, **more: object) -> SmokeRequest:
        return replace(
            SmokeRequest(checks=Checks(suite=load_suite(self.publisher.suite)), runtime="scripted"),
            **more,  # type: ignore[arg-type]
        )

    def inputs(self, *given: Path) -> GateInputs:
        """The inputs of the gate, whose policy requires tier 0."""
        return GateInputs(
            policy=Policy(tiers=(0,), checks=()),
            suite=load_suite(self.publisher.suite),
            runs=KeptRuns(store=self.publisher.store, listener=SilentSmokeListener()),
            given=given,
        )

    def judge(self, *given: Path) -> GateResult:
        return self.inputs(*given).judge(self.image, self.locked, self.publisher.folder / "images")


def event(name: str, outcome: str = "passed") -> Mapping[str, object]:
    content = {"event": "finding", "id": name, "tier": 0, "seconds": 1.0, "outcome": outcome, "message": ""}
    return content | {"measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """A publisher with a built image. Tests change only copies of it."""
    publisher = new_publisher(tmp_path_factory.mktemp("built") / "publisher", suite_with)
    found = publisher.build()
    assert image_and_lock(TAG, publisher.layout, publisher.folder / "images", publisher.store)[0] == found
    return publisher


@pytest.fixture
def scene(built: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmokeScene:
    publisher = Publisher(folder=shutil.copytree(built.folder, tmp_path / "publisher", symlinks=True))
    image, _, locked = image_and_lock(TAG, publisher.layout, publisher.folder / "images", publisher.store)
    host_event = host() | {"event": "host", "image_json_sha256": account_of(image)}
    runtime, recorder = Scripted(json_lines(host_event, *map(event, BELOW), {"event": "end"})), Recorder()
    monkeypatch.setitem(RUNTIMES, "scripted", runtime)  # type: ignore[arg-type]
    monkeypatch.setattr(sessions, "pytest_wheels", lambda *_: tmp_path)  # pip would query an index
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    session = SmokeSession(
        images=publisher.folder / "images", matrix=lambda: MATRIX, store=publisher.store, listener=recorder
    )
    return SmokeScene(publisher, image, locked, runtime, session, recorder)


def test_a_library_caller_runs_the_suite_and_calls_the_gate(scene: SmokeScene) -> None:
    """It does what `smoke TAG --tier 0` and `gate TAG` do, without the command line."""
    with pytest.raises(GateRefused, match="import"):
        clear(scene.judge())

    report = scene.session.run(TAG, scene.publisher.layout, scene.request())
    assert (report.verdict, report.image, report.tag) == ("pass", scene.image.manifest, TAG)
    assert {finding.id for finding in report.findings} == set(BELOW)
    assert report.runtime == "scripted"
    (manifest, settings, command), *_ = scene.runtime.commands
    assert manifest == scene.image.manifest
    assert settings.env == ("NCCL_DEBUG=INFO",)
    assert (command.user, command.workdir, command.entrypoint) == ("0:0", "/", False)
    assert all(not bind.writable for bind in command.binds)

    cleared = clear(scene.judge())
    assert cleared.result.image == scene.image.manifest


def test_a_repeated_request_is_answered_by_the_recorded_run(scene: SmokeScene) -> None:
    """The image may also be named by its digest. With `force`, the suite runs again."""
    first = scene.session.run(TAG, scene.publisher.layout, scene.request())
    assert scene.session.run(scene.image.manifest, scene.publisher.layout, scene.request()) == first
    checks = [f"{name} passed" for name in BELOW]
    assert scene.recorder.calls == ["starts scripted", *checks, "answered pass"]
    scene.session.run(TAG, scene.publisher.layout, scene.request(force=True))
    assert len(scene.runtime.commands) == 2


def test_a_failed_run_is_reported_and_not_reused(scene: SmokeScene) -> None:
    scene.runtime.lines = json_lines(*(event(name, "failed") for name in BELOW))
    assert scene.session.run(TAG, scene.publisher.layout, scene.request()).verdict == "fail"
    with pytest.raises(GateRefused, match="failed"):
        clear(scene.judge())
    scene.session.run(TAG, scene.publisher.layout, scene.request())
    assert scene.recorder.calls == ["starts scripted", *(f"{name} failed" for name in BELOW)] * 2


@pytest.mark.parametrize(
    ("gpus", "visible", "tiers", "tier"),
    [
        (None, None, (0, 1), 0),
        (0, None, (0, 1), 0),
        (1, None, (0, 1), 1),
        (1, None, (0, 1, 2), 1),
        (1, None, (0,), 0),
        (2, None, (0, 1), 2),
        (8, None, (), 2),
        (2, None, (0, 1, 2, 3), 3),
        (8, "", (0, 1), 0),
        (8, "-1", (0, 1), 0),
        (8, "3", (0, 1), 1),
        (8, "0,GPU-1f2e", (0, 1), 2),
        (1, "0,1", (0, 1, 2), 1),
    ],
)
def test_the_tier_that_a_host_can_run(
    monkeypatch: pytest.MonkeyPatch, gpus: int | None, visible: str | None, tiers: tuple[int, ...], tier: int
) -> None:
    """With GPUs the policy decides; checks of tier 2 need two GPUs, and run wherever there are two."""
    nodes = tuple((f"nvidia{number}", Path(f"/dev/nvidia{number}")) for number in range(gpus or 0))
    host_driver = None if gpus is None else driver.HostDriver(nodes=nodes, libraries=(), tools=())
    monkeypatch.setattr(driver, "find_driver", lambda: host_driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert tier_here(Policy(tiers=tiers)) == tier


def _with_env(scene: SmokeScene, *variables: str) -> Digest:
    """Add an image whose config has the additional *variables* to the layout; returns its digest."""
    blobs = scene.publisher.layout / "blobs" / "sha256"

    def put(value: object) -> tuple[str, int]:
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}", len(data)

    config = json.loads(json.dumps(scene.image.config))
    config["config"]["Env"] += variables
    manifest = json.loads((blobs / scene.image.manifest.removeprefix("sha256:")).read_bytes())
    manifest["config"]["digest"], manifest["config"]["size"] = put(config)
    digest, size = put(manifest)
    index = scene.publisher.layout / "index.json"
    listed = json.loads(index.read_bytes())
    listed["manifests"].append({"mediaType": manifest["mediaType"], "digest": digest, "size": size})
    index.write_text(json.dumps(listed))
    return Digest(digest)


@pytest.mark.parametrize("in_engine", [False, True])
def test_no_program_of_an_image_that_differs_from_its_lock_is_started(
    scene: SmokeScene, in_engine: bool
) -> None:
    """All checks fail. The message of the first check has all reasons."""
    scene.runtime.in_engine = in_engine
    hostile = _with_env(scene, "LD_PRELOAD=/opt/hostile.so", "PYTEST_PLUGINS=hostile")
    report = scene.session.run(hostile, scene.publisher.layout, scene.request())
    assert (report.verdict, report.image, scene.runtime.commands) == ("fail", hostile, [])
    assert (report.verified is None) == in_engine
    messages = {finding.id: finding.message.splitlines() for finding in report.findings}
    assert {finding.outcome for finding in report.findings} == {"failed"}
    assert messages.pop(report.findings[0].id) == [
        "the image differs from its lock",
        "the image's config sets LD_PRELOAD=/opt/hostile.so; in the lock: no such variable",
        "the image's config sets PYTEST_PLUGINS=hostile; in the lock: no such variable",
    ]
    assert {tuple(lines[:1]) for lines in messages.values()} == {
        ("not run: the image differs from its lock",)
    }


def test_a_report_has_the_time_of_the_comparison_of_files(scene: SmokeScene) -> None:
    report = scene.session.run(TAG, scene.publisher.layout, scene.request())
    assert report.verified is not None
    assert report.when is not None
    assert report.verified >= report.when
    assert report.root in ("mounted", "unpacked")
    assert f"files    {report.root}, compared with the image's layers at {report.verified}" in to_lines(
        report
    )
    old = replace(report, root=None)
    assert f"files    compared with the image's layers at {report.verified}" in to_lines(old)
    assert "root" not in json.loads(to_json(old))
    assert from_json(to_json(report)) == report

    scene.runtime.in_engine = True
    report = scene.session.run(TAG, scene.publisher.layout, scene.request())
    assert (report.verified, report.root) == (None, None)
    assert "verified" not in json.loads(to_json(report))


def test_a_damaged_copy_of_an_image_is_replaced_and_the_run_passes(scene: SmokeScene) -> None:
    scene.session.run(TAG, scene.publisher.layout, scene.request())
    root = root_of(scene.publisher.store, scene.image.manifest)
    planted = root / "opt/venv/lib/python3.11/site-packages/hostile.pth"
    planted.write_text("import os\n")
    assert scene.session.run(TAG, scene.publisher.layout, scene.request(force=True)).verdict == "pass"
    assert not planted.exists()


def test_an_unknown_check_is_a_usage_error(scene: SmokeScene) -> None:
    with pytest.raises(ConfigError, match="no check named nothing-like-it"):
        Checks(suite=load_suite(scene.publisher.suite), only=("nothing-like-it",))


def test_the_wheels_that_were_cut_are_those_of_the_lock_in_the_cache(scene: SmokeScene) -> None:
    """In a full image no wheel was cut."""
    wheel, *_ = scene.locked.wheels
    cut = DeviceCode(rule=1, gpus=("9.0",), wheels=(wheel.name, "absent"), own_use=False)
    store, place = scene.publisher.store, scene.publisher.store.wheel(wheel)
    place.unlink(missing_ok=True)

    assert cut_wheels(scene.locked, store) == {}
    assert cut_wheels(replace(scene.locked, device_code=cut), store) == {}
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x" * (wheel.size or 1))
    assert cut_wheels(scene.locked, store) == {}
    assert cut_wheels(replace(scene.locked, device_code=cut), store) == {wheel.name: place}
