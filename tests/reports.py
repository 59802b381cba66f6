"""Smoke reports for tests: what a run of a small suite on two GPUs would have told of a locked image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.smoke_suites import FACTS
from torchkiln.lock.lock import load_locked
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, Outcome, SignedReport, SmokeReport
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
# The rule is the real one; the checks are few.
SUITE = replace(
    load_suite(ROOT / "smoke_tests"),
    digest=Digest("sha256:" + "5a" * 32),
    checks=tuple(SuiteCheck(id=name, tier=tier) for name, tier in TIERS.items()),
)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False


@dataclass
class FakeInside:
    """An image with a memory: answers with one ending, notes what was asked."""

    ending: Done
    name: str = "fake"
    python: str = "/opt/venv/bin/python"
    asked: list[tuple[list[str], dict[str, Path], Any]] = field(default_factory=list)
    kills: int = 0  # by its kernel while the command runs
    killed: int = 3

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Done:
        facts = json.loads(binds["/opt/torchkiln/smoke-facts.json"].read_text())
        self.asked.append((list(argv), dict(binds), facts))
        self.killed += self.kills
        return self.ending

    def killed_for_memory(self) -> int:
        return self.killed


def said(*events: Mapping[str, Any]) -> bytes:
    """The runner's lines."""
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def gpu(name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)) -> dict[str, Any]:
    """A GPU as the runner tells of it."""
    return {
        "name": name,
        "capability": list(capability),
        "processors": 132,
        "memory": 141 << 30,
        "free": 140 << 30,
        "nvlinks": 18,
    }


def host(*gpus: Mapping[str, Any], tag: str = TAG) -> dict[str, Any]:
    """A machine with *gpus*, each of which reaches every other, and the image.json that *tag* has."""
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
    """A finding with one bounded value, within its bound."""
    values = {"measured": '{"x": 1}', "threshold": '{"x": {"equals": 1}}'} if outcome == "passed" else {}
    told = Finding(
        id=name,
        tier=TIERS[name],
        outcome=cast(Outcome, outcome),
        seconds=1.0,
        message=message,
        measured="{}",
        threshold="{}",
    )
    return replace(told, **{**values, **other})


def report(*others: Finding, **other: Any) -> SmokeReport:
    """Every check of the suite passed on two GPUs; *others* stand in the place of the same check's."""
    told = {name: found(name) for name in TIERS} | {finding.id: finding for finding in others}
    base = SmokeReport(
        image=IMAGE,
        tag=TAG,
        suite=SUITE.digest,
        runtime="rootfs",
        tool="0.1.0",
        when=WHEN,
        nonce=None,
        findings=tuple(told.values()),
        verdict=verdict(told.values()),
        host=json.dumps(host(gpu(), gpu()), sort_keys=True),
    )
    return replace(base, **other)


def without(told: SmokeReport, *names: str) -> SmokeReport:
    """*told* with the checks *names* deselected, and the verdict that is then right."""
    findings = tuple(finding for finding in told.findings if finding.id not in names)
    return replace(told, findings=findings, verdict=verdict(findings))


def signed_report(told: SmokeReport, name: str = "report.json", *signers: str) -> SignedReport:
    """*told* as a file that was read; this machine's own, where nobody signed it."""
    return SignedReport(name=name, report=told, signed=bool(signers), signers=signers, own=not signers)


def suite_of(**tiers: int) -> Suite:
    """The suite with other checks."""
    return replace(SUITE, checks=tuple(SuiteCheck(id=name, tier=tier) for name, tier in tiers.items()))
