"""The result of a smoke run: findings, the report, and the report with its signatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchkiln.model.digest import Digest

Outcome = Literal["passed", "failed", "skipped", "not-applicable"]
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check's outcome; `measured` and `threshold` are JSON texts."""

    id: str
    tier: int
    outcome: Outcome
    seconds: float
    message: str
    measured: str
    threshold: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeReport:
    """What the checks saw inside one image, bound to its manifest digest; or where there was no image."""

    image: Digest | None  # None, like `tag`: an environment, which no gate clears
    tag: str | None
    suite: Digest
    runtime: str
    tool: str  # version of torchkiln, "0.1.0"
    when: str | None  # the run's beginning in UTC, "2026-11-21T17:05:16Z"; None: nobody told
    nonce: str | None  # the word that whoever asked for this run gave to be told back
    findings: tuple[Finding, ...]
    verdict: Verdict
    host: str  # JSON text: kernel, cores, driver, GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedReport:
    """A report as it was handed in, and whose signatures on it are good."""

    name: str  # of its file, for messages
    report: SmokeReport
    signed: bool  # by anybody, looked at or not
    signers: tuple[str, ...]  # fingerprints of those trusted keys whose signature fits
    own: bool = False  # this machine ran it: it lies in the cache as it was made
    envelope: bytes | None = field(default=None, repr=False)  # the signed statement, as it was handed in
