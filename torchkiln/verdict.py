"""Findings -> Verdict, from the raw values: a success that its own values do not bear out is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from torchkiln.nouns import Finding, Verdict

# Errors that only a host can cause, however the check that met them ended.
HOST_FAULTS = (
    (
        re.compile(r"insufficient shared memory \(shm\)|unable to (write|mmap|open).*/torch_"),
        "/dev/shm is full",
    ),
    (re.compile(r"No space left on device"), "the disk for temporary files is full"),
    (re.compile(r"Cannot allocate memory|can't start new thread"), "out of memory or processes"),
)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """`fail`: the image is at fault; `inconclusive`: the host is, or nothing was proved; else `pass`."""
    judged = [(finding, faults(finding)) for finding in findings]
    failed = [finding for finding, told in judged if told]
    if any(host_fault(finding) is None for finding in failed):
        return "fail"
    proved = any(finding.outcome == "passed" for finding, _ in judged)
    if failed or not proved or any(finding.outcome == "skipped" for finding, _ in judged):
        return "inconclusive"
    return "pass"


def faults(finding: Finding) -> list[str]:
    """Why *finding* is no success: what it says itself, or what its values say of a stated success."""
    if finding.outcome == "failed":
        return [finding.message]
    if finding.outcome != "passed":
        return []
    measured, threshold = json.loads(finding.measured), json.loads(finding.threshold)
    if not threshold:
        return ["it states success and bounded nothing"]
    return [
        f"it states success, and {name} is not within its bound"
        for name, bound in threshold.items()
        if name not in measured or not is_within(measured[name], bound)
    ]


def host_fault(finding: Finding) -> str | None:
    """The host's fault that the message of a failed finding gives away, if it does."""
    if finding.outcome != "failed":
        return None
    return next((fault for text, fault in HOST_FAULTS if text.search(finding.message)), None)


def is_within(value: Any, bound: dict[str, Any]) -> bool:
    """Whether *value* keeps every part of *bound*: `equals`, `at_least`, `at_most`; no other is ever kept."""
    return bool(bound) and all(_keeps(value, kind, limit) for kind, limit in bound.items())


def _keeps(value: Any, kind: str, limit: Any) -> bool:
    if kind == "equals":
        return bool(value == limit)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return bool({"at_least": value >= limit, "at_most": value <= limit}.get(kind, False))
