"""BuiltImage -> SmokeReport: run the suite inside the image, keep what every check saw."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torchkiln.nouns import BuiltImage, Finding, Outcome, SmokeReport
from torchkiln.suite import Suite, SuiteCheck
from torchkiln.verdict import verdict

SUITE_LIMIT = 1800.0  # seconds for all checks together
_PATIENCE = 60.0  # seconds beyond that, for the runner keeps the limit itself
_OUTCOMES: dict[str, Outcome] = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "not-applicable": "not-applicable",
}


class Ended(Protocol):
    """How a command inside an image ended."""

    @property
    def code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def timed_out(self) -> bool: ...


class Inside(Protocol):
    """All that smoke() needs of a runtime: run a command in one image, with paths bound in read-only."""

    @property
    def name(self) -> str: ...
    @property
    def python(self) -> str: ...
    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Ended: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """What the runner said, line by line."""

    host: dict[str, Any] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    findings: dict[str, Finding] = field(default_factory=dict)


def smoke(
    image: BuiltImage,
    inside: Inside,
    suite: Suite,
    facts: Mapping[str, Any],
    *,
    wheels: Path,
    tier: int = 0,
    only: Collection[str] = (),
    limit_s: float = SUITE_LIMIT,
) -> SmokeReport:
    """Run the checks of *suite* up to *tier* (of them *only* the named ones) in *image*, all, whatever fails.

    *facts* is what the outside says of the image (see claims), *wheels* the folder of pytest. Every selected
    check has its finding: one that left no word is a failed one.
    """
    with tempfile.TemporaryDirectory(prefix="torchkiln-smoke-") as folder:
        told = Path(folder) / "facts.json"
        told.write_text(json.dumps(facts))
        argv = [inside.python, "-I", "-B", "/opt/torchkiln/smoke_tests/runner.py"]
        argv += ["--facts", "/opt/torchkiln/smoke-facts.json", "--wheels", "/opt/torchkiln/pytest-wheels"]
        argv += ["--tier", str(tier), "--limit", str(limit_s)]
        argv += [word for check in sorted(only) for word in ("--only", check)]
        binds = {
            "/opt/torchkiln/smoke_tests": suite.folder,
            "/opt/torchkiln/pytest-wheels": wheels,
            "/opt/torchkiln/smoke-facts.json": told,
        }
        ended = inside.run(argv, binds=binds, timeout_s=limit_s + _PATIENCE)
    heard = hear(ended.stdout)
    selected = [check for check in suite.checks if check.tier <= tier and (not only or check.id in only)]
    findings = tuple(
        _checked(heard.findings.get(check.id) or _silent(check, heard, ended), suite, facts, heard.host)
        for check in selected
    )
    return SmokeReport(
        image=image.manifest,
        tag=image.tag,
        suite=suite.digest,
        runtime=inside.name,
        findings=findings,
        verdict=verdict(findings),
        host=json.dumps(heard.host, sort_keys=True),
    )


def hear(stdout: bytes) -> Heard:
    """The runner's lines; a line that is none of its own is passed over, and missed where it matters."""
    host: dict[str, Any] = {}
    started: list[str] = []
    findings: dict[str, Finding] = {}
    for line in stdout.decode("utf-8", "replace").splitlines():
        try:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "host":
                host = event
            elif kind == "start":
                started.append(str(event["id"]))
            elif kind == "finding":
                findings.setdefault(str(event["id"]), _finding(event))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
    return Heard(host, tuple(started), findings)


def capability(host: Mapping[str, Any]) -> tuple[int, int] | None:
    """The lowest compute capability among the GPUs that a report's host names; None: it names none."""
    try:
        return min((int(gpu["capability"][0]), int(gpu["capability"][1])) for gpu in host["driver"]["gpus"])
    except (LookupError, TypeError, ValueError):
        return None


def _finding(event: Mapping[str, Any]) -> Finding:
    return Finding(
        id=str(event["id"]),
        tier=int(event["tier"]),
        outcome=_OUTCOMES[event["outcome"]],
        seconds=float(event["seconds"]),
        message=str(event["message"]),
        measured=json.dumps(dict(event["measured"])),
        threshold=json.dumps(dict(event["threshold"])),
    )


def _silent(check: SuiteCheck, heard: Heard, ended: Ended) -> Finding:
    """The finding of a check of which nothing was heard: how the runner ended is all there is to say."""
    how = "was stopped after its time" if ended.timed_out else f"ended with exit code {ended.code}"
    said = "\n".join(ended.stderr.decode("utf-8", "replace").strip().splitlines()[-5:])
    when = "during this check" if check.id in heard.started else "before this check"
    return Finding(
        id=check.id,
        tier=check.tier,
        outcome="failed",
        seconds=0.0,
        message=f"no result: the runner {how} {when}\n{said}".strip(),
        measured="{}",
        threshold="{}",
    )


def _checked(found: Finding, suite: Suite, facts: Mapping[str, Any], host: Mapping[str, Any]) -> Finding:
    """What the image says of a check's not applying is asked of the suite again, out here."""
    fact = suite.not_applicable(found.id, facts, capability(host))
    if found.outcome == "not-applicable" and fact != found.message:
        return replace(found, outcome="failed", message=f"left out for {found.message!r}, but it applies")
    if found.outcome == "passed" and fact is not None:
        return replace(found, outcome="failed", message=f"passed, although {fact!r} says it cannot apply")
    return found
