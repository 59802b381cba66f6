"""Smoke reports for tests, as from a run of a small suite in a locked image on two GPUs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.smoke_suites import FACTS
from torchkiln.locks.lock import load_locked
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, Outcome, SignedReport, SmokeReport
from torchkiln.runtimes.capture import OnLine
from torchkiln.smoke.run import SmokeSubject
from torchkiln.smoke.suite import Suite, SuiteCheck, load_suite
from torchkiln.smoke.verdict import verdict
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
IMAGE = Digest("sha256:" + "ab" * 32)
BUILT = SmokeSubject(image=IMAGE, tag=TAG, facts=FACTS)
WHEN = "2026-11-21T17:05:16Z"
OTHER = Digest("sha256:" + "cd" * 32)
LOCKED = load_locked(ROOT / "images", TAG)
OLD = load_locked(ROOT / "images", "2.0.1-cuda11.7-cudnn8-runtime")
TIERS = {"import": 0, "compile-cpu": 0, "cuda": 1, "bf16": 1, "nccl-all-reduce": 2, "busbw": 2}
X_IS_1 = {"x": {"equals": 1}}
# The real suite with only six invented checks.
SUITE = replace(
    load_suite(ROOT / "smoke_tests"),
    digest=Digest("sha256:" + "5a" * 32),
    checks=tuple(SuiteCheck(id=name, tier=tier, values=X_IS_1) for name, tier in TIERS.items()),
)


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False


@dataclass
class FakeInside:
    """A fake image: each command gives the result *ending*, and is recorded in `commands`."""

    ending: Done
    name: str = "fake"
    python: str = "/opt/venv/bin/python"
    commands: list[tuple[list[str], dict[str, Path], Any]] = field(default_factory=list)
    kills: int = 0  # processes that the kernel kills while the command runs
    killed: int = 3

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Done:
        facts = json.loads(binds["/opt/torchkiln/smoke-facts.json"].read_text())
        self.commands.append((list(argv), dict(binds), facts))
        for line in self.ending.stdout.splitlines():
            on_line(line)
        self.killed += self.kills
        return self.ending

    def killed_for_memory(self) -> int:
        return self.killed


def json_lines(*events: Mapping[str, Any]) -> bytes:
    """*events* as the lines that the runner prints."""
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def gpu(name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)) -> dict[str, Any]:
    """A GPU in the runner's format."""
    return {
        "name": name,
        "capability": list(capability),
        "processors": 132,
        "memory": 141 << 30,
        "free": 140 << 30,
        "nvlinks": 18,
    }


def host(*gpus: Mapping[str, Any], tag: str = TAG) -> dict[str, Any]:
    """The host facts of a machine with *gpus*, all with peer access, and the image.json of *tag*."""
    pairs = [[a, b] for a in range(len(gpus)) for b in range(len(gpus)) if a != b]
    return {
        "kernel": "6.1",
        "cores": 32,
        "memory": 256 << 30,
        "shm": 64 << 30,
        "uid": 0,
        "driver": {
            "driver": "570.124.06",
            "cuda": "12.8",
            "libcuda": None,
            "gpus": list(gpus),
            "peers": pairs,
            "links": [[a, b, "NVLINK"] for a, b in pairs if a < b],
        },
        "image_json_sha256": hashlib.sha256((ROOT / "images" / tag / "image.json").read_bytes()).hexdigest(),
    }


def found(name: str, outcome: str = "passed", message: str = "", **other: Any) -> Finding:
    """A finding of the check *name*; if it passed, with one value within its bound."""
    values = {"measured": '{"x": 1}', "threshold": '{"x": {"equals": 1}}'} if outcome == "passed" else {}
    finding = Finding(
        id=name,
        tier=TIERS[name],
        outcome=cast(Outcome, outcome),
        seconds=1.0,
        message=message,
        measured="{}",
        threshold="{}",
    )
    return replace(finding, **{**values, **other})


def report(*others: Finding, **other: Any) -> SmokeReport:
    """A report in which all checks passed on two GPUs, except for the findings *others*."""
    findings = {name: found(name) for name in TIERS} | {finding.id: finding for finding in others}
    base = SmokeReport(
        image=IMAGE,
        tag=TAG,
        suite=SUITE.digest,
        runtime="rootfs",
        tool="0.1.0",
        when=WHEN,
        nonce=None,
        findings=tuple(findings.values()),
        verdict=verdict(findings.values()),
        host=json.dumps(host(gpu(), gpu()), sort_keys=True),
    )
    return replace(base, **other)


def without(smoke_report: SmokeReport, *names: str) -> SmokeReport:
    """*smoke_report* without the checks *names*, and with the verdict of the remaining checks."""
    findings = tuple(finding for finding in smoke_report.findings if finding.id not in names)
    return replace(smoke_report, findings=findings, verdict=verdict(findings))


def signed_report(smoke_report: SmokeReport, name: str = "report.json", *signers: str) -> SignedReport:
    """*smoke_report* as signed by *signers*; without signers, as an unsigned report of this machine."""
    return SignedReport(
        name=name, report=smoke_report, signed=bool(signers), signers=signers, own=not signers
    )


def suite_of(**tiers: int) -> Suite:
    """SUITE with the checks *tiers* (name to tier) in place of its own."""
    checks = (SuiteCheck(id=name, tier=tier, values=X_IS_1) for name, tier in tiers.items())
    return replace(SUITE, checks=tuple(checks))
