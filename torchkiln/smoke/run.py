"""Subject -> SmokeReport: run the suite inside the image, keep what every check saw.

`of_environment` makes the same of what a runner said elsewhere, where there was no image.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from torchkiln import __version__
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.report import finding_of
from torchkiln.smoke.snapshot import copied
from torchkiln.smoke.suite import Suite, SuiteCheck
from torchkiln.smoke.verdict import verdict
from torchkiln.util.scratch import scratch
from torchkiln.util.strict_json import DEPTH, json_of

SUITE_LIMIT = 1800.0  # seconds for all checks together
_PATIENCE = 60.0  # seconds beyond that, for the runner keeps the limit itself
_ROOM = 6  # levels that a report and a signed statement put around what a line says


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
    def killed_for_memory(self) -> int:
        """How many processes its kernel has killed for want of memory so far; 0 where nobody knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """What of a suite is to run.

    :raises ConfigError: the suite has no check of a name in *only*.
    """

    suite: Suite
    tier: int = 0  # and those below
    only: tuple[str, ...] = ()  # of these, the named ones
    limit_s: float = SUITE_LIMIT
    nonce: str | None = None  # a word of whoever asks; it stands in the report

    def __post_init__(self) -> None:
        ids = [check.id for check in self.suite.checks]
        if unknown := sorted(set(self.only) - set(ids)):
            faults = [f"no check named {name}" for name in unknown]
            raise ConfigError.of(faults, hint=f"there are: {', '.join(ids)}")

    @property
    def selected(self) -> list[SuiteCheck]:
        """The checks that it means."""
        return [
            check
            for check in self.suite.checks
            if check.tier <= self.tier and (not self.only or check.id in self.only)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The image that is checked, and what the outside says of it (see `expected.facts_of`)."""

    image: Digest
    tag: str
    facts: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the runner said, line by line."""

    host: dict[str, Any] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    findings: dict[str, Finding] = field(default_factory=dict)
    ended: bool = False  # it came to its end, so whatever was not told was not asked for
    unfit: tuple[str, ...] = ()  # why lines of it could not be kept


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What the suite is to see of the host's environment: how NCCL is to take this machine's links."""
    known = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")
    return {name: value for name, value in environ.items() if name.startswith(known)}


def smoke(subject: Subject, inside: Inside, checks: Checks, *, wheels: Path, when: str) -> SmokeReport:
    """Run *checks* in the image of *subject*, all, whatever fails.

    *wheels* is the folder of pytest, *when* the time of this call. Every selected check has its finding: one
    that left no word is a failed one.
    """
    suite, facts = checks.suite, subject.facts
    with scratch("smoke") as folder, copied(suite.runnable(), "smoke_tests") as folder_of_suite:
        told = folder / "facts.json"
        told.write_text(json.dumps(facts))
        told.chmod(0o444)
        argv = [inside.python, "-I", "-B", "/opt/torchkiln/smoke_tests/runner.py"]
        argv += ["--facts", "/opt/torchkiln/smoke-facts.json", "--wheels", "/opt/torchkiln/pytest-wheels"]
        argv += ["--tier", str(checks.tier), "--limit", str(checks.limit_s)]
        argv += [word for check in sorted(checks.only) for word in ("--only", check)]
        binds = {
            "/opt/torchkiln/smoke_tests": folder_of_suite,
            "/opt/torchkiln/pytest-wheels": wheels,
            "/opt/torchkiln/smoke-facts.json": told,
        }
        before = inside.killed_for_memory()
        ended = inside.run(argv, binds=binds, timeout_s=checks.limit_s + _PATIENCE)
        killed = inside.killed_for_memory() - before
    heard = hear(ended.stdout)
    findings = tuple(
        _for_memory(_checked(found, suite, facts, heard.host), killed)
        for check in checks.selected
        for found in [heard.findings.get(check.id) or _silent(check, heard, _how(ended))]
    )
    return SmokeReport(
        image=subject.image,
        tag=subject.tag,
        suite=suite.digest,
        runtime=inside.name,
        tool=__version__,
        when=when,
        nonce=checks.nonce,
        findings=findings,
        verdict=verdict(findings),
        host=json.dumps(heard.host, sort_keys=True),
    )


def of_environment(stdout: bytes, suite: Suite, *, when: str | None, name: str = "run.jsonl") -> SmokeReport:
    """The report of what a runner of *suite* printed (*stdout*) in an environment without an image.

    A check that was begun, or whose turn never came because the run was cut short, has failed.

    :raises ConfigError: not a line of it is a runner's, or it names another suite than *suite*.
    """
    heard = hear(stdout)
    if not heard.started:
        why = f" ({heard.unfit[0]})" if heard.unfit else ""
        raise ConfigError(
            f"{name}: not the output of runner.py{why}",
            hint="name a file with the stdout of smoke_tests/runner.py",
        )
    known = {check.id for check in suite.checks}
    if strange := sorted(set(heard.started) - known):
        told = ", ".join(check[:80] for check in strange[:5])
        raise ConfigError(f"{name}: another suite ran: this one has no {told}", hint="see --suite")
    ran = heard.host.get("suite")
    if ran not in (None, suite.digest):
        raise ConfigError(f"{name}: another suite ran: {ran}, this one is {suite.digest}", hint="see --suite")
    tier = max(check.tier for check in suite.checks if check.id in heard.started)
    findings = tuple(
        heard.findings.get(check.id) or _silent(check, heard, "said no more")
        for check in suite.checks
        if check.id in heard.started or not (heard.ended or check.of_image or check.tier > tier)
    )
    return SmokeReport(
        image=None,
        tag=None,
        suite=suite.digest,
        runtime="environment",
        tool=__version__,
        when=when,
        nonce=None,
        findings=findings,
        verdict=verdict(findings),
        host=json.dumps(heard.host, sort_keys=True),
    )


def hear(stdout: bytes) -> Heard:
    """The runner's lines; a line that is none of its own is passed over, and missed where it matters."""
    host: dict[str, Any] = {}
    started: list[str] = []
    findings: dict[str, Finding] = {}
    unfit: list[str] = []
    ended = False
    for line in stdout.splitlines():
        try:
            event = json_of(line, depth=DEPTH - _ROOM)
            kind = event.pop("event")
            if kind == "host" and hosts.fits(event):
                host = event
            elif kind == "start":
                started.append(str(event["id"]))
            elif kind == "finding":
                found = _finding(event)
                findings.setdefault(found.id, found)
            ended = ended or kind == "end"
        except ValueError as error:
            unfit += [str(error)] * line.startswith(b'{"event"')  # else some other program's
        except (KeyError, AttributeError, TypeError):
            continue
    return Heard(host, tuple(started), findings, ended, tuple(unfit))


def _finding(event: Mapping[str, Any]) -> Finding:
    """:raises ValueError: no report could hold it."""
    return finding_of({field.name: event[field.name] for field in fields(Finding)})


def _how(ended: Ended) -> str:
    said = "\n".join(ended.stderr.decode("utf-8", "replace").strip().splitlines()[-5:])
    how = "was stopped after its time" if ended.timed_out else f"ended {_by(ended.code)}"
    return f"{how}\n{said}" if said else how


def _by(code: int) -> str:
    """An exit code; 128 and a number is a signal, as shells and engines tell it."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"with exit code {code}"
    return f"by {name}" + (" (the kernel's, where memory runs out)" if name == "SIGKILL" else "")


def _silent(check: SuiteCheck, heard: Heard, how: str) -> Finding:
    """The finding of a check of which nothing was heard: how the runner ended is all there is to say."""
    how, _, said = how.partition("\n")
    when = "during this check" if check.id in heard.started else "before this check"
    unfit = f"\na line of its output cannot be kept: {heard.unfit[0]}" if heard.unfit else ""
    return Finding(
        id=check.id,
        tier=check.tier,
        outcome="failed",
        seconds=0.0,
        message=f"no result: the runner {how} {when}{unfit}\n{said}".strip(),
        measured="{}",
        threshold="{}",
    )


def _checked(found: Finding, suite: Suite, facts: Mapping[str, Any], host: Mapping[str, Any]) -> Finding:
    """What the image says of a check's not applying is asked of the suite again, out here."""
    fact = suite.not_applicable(found.id, facts, hosts.capability(host))
    if found.outcome == "not-applicable" and fact != found.message:
        return replace(found, outcome="failed", message=f"left out for {found.message!r}, but it applies")
    if found.outcome == "passed" and fact is not None:
        return replace(found, outcome="failed", message=f"passed, although {fact!r} says it cannot apply")
    return found


def _for_memory(found: Finding, killed: int) -> Finding:
    """A failed one beside what the kernel did meanwhile: a process that it kills says nothing."""
    if found.outcome != "failed" or killed <= 0:
        return found
    processes = f"{killed} process{'es' * (killed > 1)}"
    told = f"meanwhile the kernel killed {processes} of that machine for want of memory"
    return replace(found, message=f"{found.message}\n{told}".strip())
