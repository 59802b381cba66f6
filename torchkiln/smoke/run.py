"""Run the suite in an image and make a report from the runner's output.

`of_environment` makes a report from the output of a runner that ran without an image.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from torchkiln import __version__
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, Root, SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.report import finding_of
from torchkiln.smoke.snapshot import copied
from torchkiln.smoke.suite import Suite, SuiteCheck
from torchkiln.smoke.verdict import verdict
from torchkiln.util.scratch import scratch
from torchkiln.util.strict_json import DEPTH, json_of

SUITE_LIMIT = 1800.0  # seconds for all checks together
_WHEELS = "/opt/torchkiln/wheels"  # in the image
_SUITE = "name the suite that ran: --suite FOLDER"
_EXTRA_S = 60.0  # the runner ends at the limit; if it does not, it is killed this much later
_MOST = 1000  # maximum checks, and maximum faults; a run may print any number of lines
_NESTING = 6  # levels of JSON that a report and a signed statement add around a line of the runner


class Ended(Protocol):
    """How a command inside an image ended."""

    @property
    def code(self) -> int: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def timed_out(self) -> bool: ...


class Inside(Protocol):
    """The part of a runtime that `smoke` uses: it runs commands in one image, with read-only bind mounts.

    Each line of stdout is passed to *on_line* when it is complete.
    """

    @property
    def name(self) -> str: ...
    @property
    def python(self) -> str: ...
    def run(
        self,
        argv: Sequence[str],
        *,
        binds: Mapping[str, Path],
        timeout_s: float,
        on_line: Callable[[bytes], None],
    ) -> Ended: ...
    def killed_for_memory(self) -> int:
        """The number of processes in the image that the kernel killed for lack of memory; 0 if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """The checks of a suite to run.

    :raises ConfigError: a name in *only* is not a check of the suite, or is a check of a tier above *tier*.
    """

    suite: Suite
    tier: int = 0  # the highest tier
    only: tuple[str, ...] = ()  # ids; empty: all
    limit_s: float = SUITE_LIMIT
    nonce: str | None = None  # chosen by the requester and copied into the report

    def __post_init__(self) -> None:
        ids = [check.id for check in self.suite.checks]
        if unknown := sorted(set(self.only) - set(ids)):
            faults = [f"no check named {name}" for name in unknown]
            raise ConfigError.of(faults, hint=f"available: {', '.join(ids)}")
        if self.suite.tier_of(self.only) > self.tier:
            above = [check for check in self.suite.checks if check.id in self.only and check.tier > self.tier]
            faults = [
                f"{check.id} is a check of tier {check.tier}, not of --tier {self.tier}" for check in above
            ]
            raise ConfigError.of(faults, hint=f"add --tier {self.suite.tier_of(self.only)}")

    @property
    def selected(self) -> list[SuiteCheck]:
        """The checks up to *tier*; with *only*, those of them that it names."""
        return [
            check
            for check in self.suite.checks
            if check.tier <= self.tier and (not self.only or check.id in self.only)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeSubject:
    """The image to check, and the facts to compare it with (see `expected.facts_of`)."""

    image: Digest
    tag: str
    facts: Mapping[str, Any] = field(hash=False)
    verified: str | None = None  # when its unpacked files were compared with its layers
    root: Root | None = None
    # by name: the files of the wheels whose libraries were cut, for the check `device-code`
    wheels: Mapping[str, Path] = field(default_factory=dict, hash=False)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables in *environ* that the suite gets: settings of NCCL, NVSHMEM and symmetric memory."""
    prefixes = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")
    return {name: value for name, value in environ.items() if name.startswith(prefixes)}


def smoke(
    subject: SmokeSubject,
    inside: Inside,
    checks: Checks,
    *,
    wheels: Path,
    when: str,
    on_finding: Callable[[Finding], None] = lambda _: None,
) -> SmokeReport:
    """Run all *checks* in the image of *subject*.

    The report has a finding for each selected check; a check without a result has failed.

    :param wheels: the folder with pytest.
    :param when: the current time.
    :param on_finding: called once for each selected check that has ended, while the others run.
    """
    suite, facts, output = checks.suite, subject.facts, RunnerOutput()
    selected = {check.id for check in checks.selected}

    def read(line: bytes) -> None:
        found = output.read(line)
        if found and found.id in selected:
            on_finding(_checked(found, suite, facts, output.host))

    with scratch("smoke") as folder, copied(suite.runnable(), "smoke_tests") as folder_of_suite:
        file, wheel_files = folder / "facts.json", {name: f"{_WHEELS}/{name}.whl" for name in subject.wheels}
        file.write_text(json.dumps({**facts, **({"wheel_files": wheel_files} if wheel_files else {})}))
        file.chmod(0o444)
        argv = [inside.python, "-I", "-S", "-B", "/opt/torchkiln/smoke_tests/runner.py"]
        argv += ["--facts", "/opt/torchkiln/smoke-facts.json", "--wheels", "/opt/torchkiln/pytest-wheels"]
        argv += ["--tier", str(checks.tier), "--limit", str(checks.limit_s)]
        argv += [word for check in sorted(checks.only) for word in ("--only", check)]
        binds = {
            "/opt/torchkiln/smoke_tests": folder_of_suite,
            "/opt/torchkiln/pytest-wheels": wheels,
            "/opt/torchkiln/smoke-facts.json": file,
            **{wheel_files[name]: path for name, path in subject.wheels.items()},
        }
        before = inside.killed_for_memory()
        ended = inside.run(argv, binds=binds, timeout_s=checks.limit_s + _EXTRA_S, on_line=read)
        killed = inside.killed_for_memory() - before
    findings = tuple(
        _with_killed(_checked(found, suite, facts, output.host), killed)
        for check in checks.selected
        for found in [output.findings.get(check.id) or _no_result(check, output, _how(ended))]
    )
    return _report(findings, output, suite, when=when, **_of_image(subject, inside.name, checks))


def not_run(
    subject: SmokeSubject, checks: Checks, faults: Sequence[str], *, runtime: str, when: str
) -> SmokeReport:
    """The report on an image whose files or config differ from its lock; none of its programs was started.

    All checks count as failed, because values from its programs would prove nothing. The check
    `lock` names all differences; if `lock` is not selected, the first check does.
    """
    differs = "the image differs from its lock"
    reasons, short = "\n".join((differs, *faults)), f"not run: {differs}\n{faults[0]}"
    ids = [check.id for check in checks.selected]
    place = "lock" if "lock" in ids else ids[0] if ids else ""
    findings = tuple(_failed(check, reasons if check.id == place else short) for check in checks.selected)
    run = _of_image(subject, runtime, checks)
    return _report(findings, RunnerOutput(), checks.suite, when=when, **run)


def _of_image(subject: SmokeSubject, runtime: str, checks: Checks) -> dict[str, Any]:
    """The fields of a report for image, suite, runtime and time."""
    return {
        "image": subject.image,
        "tag": subject.tag,
        "runtime": runtime,
        "nonce": checks.nonce,
        "verified": subject.verified,
        "root": subject.root,
    }


def of_environment(stdout: bytes, suite: Suite, *, when: str | None, name: str = "run.jsonl") -> SmokeReport:
    """The report from *stdout*, which a runner of *suite* wrote in an environment without an image.

    A check that was started but has no result, or that an interrupted run did not reach, has failed.

    :raises ConfigError: *stdout* is not the output of a runner, or the runner ran another suite.
    """
    output = parse_output(stdout)
    if not output.started:
        reason = f" ({output.invalid[0]})" if output.invalid else ""
        raise ConfigError(
            f"{name}: not the output of runner.py{reason}",
            hint="name a file with the stdout of smoke_tests/runner.py",
        )
    known = {check.id for check in suite.checks}
    if unknown := sorted(set(output.started) - known):
        names = ", ".join(check[:80] for check in unknown[:5])
        raise ConfigError(f"{name}: another suite ran: unknown checks: {names}", hint=_SUITE)
    ran = output.host.get("suite")
    if ran not in (None, suite.digest):
        raise ConfigError(f"{name}: another suite ran: {ran}, not {suite.digest}", hint=_SUITE)
    tier = max(check.tier for check in suite.checks if check.id in output.started)
    findings = tuple(
        output.findings.get(check.id) or _no_result(check, output, "wrote no more output")
        for check in suite.checks
        if check.id in output.started or not (output.complete or check.of_image or check.tier > tier)
    )
    run = {"image": None, "tag": None, "runtime": "environment", "nonce": None}
    return _report(findings, output, suite, when=when, **run)


def _report(findings: tuple[Finding, ...], output: RunnerOutput, suite: Suite, **run: Any) -> SmokeReport:
    return SmokeReport(
        suite=suite.digest,
        tool=__version__,
        findings=findings,
        verdict=verdict(findings),
        host=json.dumps(output.host, sort_keys=True),
        **run,
    )


def _how(ended: Ended) -> str:
    stderr = "\n".join(ended.stderr.decode("utf-8", "replace").strip().splitlines()[-5:])
    how = "timed out" if ended.timed_out else exit_status(ended.code)
    return f"{how}\n{stderr}" if stderr else how


def exit_status(code: int) -> str:
    """A text for an exit code; as in shells, 128 + N means that signal N killed the command."""
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"ended with exit code {code}"
    return f"was killed by {name}" + (" (possibly out of memory)" if name == "SIGKILL" else "")


def _no_result(check: SuiteCheck, output: RunnerOutput, how: str) -> Finding:
    """The finding of a check without a result; *how*: how the runner ended."""
    how, _, stderr = how.partition("\n")
    when = "during this check" if check.id in output.started else "before this check"
    invalid = f"\na line of its output is invalid: {output.invalid[0]}" if output.invalid else ""
    return _failed(check, f"no result: the runner {how} {when}{invalid}\n{stderr}".strip())


def _failed(check: SuiteCheck, message: str) -> Finding:
    """The finding of a check that measured nothing."""
    return Finding(
        id=check.id,
        tier=check.tier,
        outcome="failed",
        seconds=0.0,
        message=message,
        measured="{}",
        threshold="{}",
    )


def _checked(found: Finding, suite: Suite, facts: Mapping[str, Any], host: Mapping[str, Any]) -> Finding:
    """*found*; as failed if its outcome contradicts the suite's rule, computed from *facts* and *host*."""
    fact = suite.not_applicable(found.id, facts, hosts.capability(host))
    if found.outcome == "not-applicable" and fact != found.message:
        return replace(
            found, outcome="failed", message=f"reported as not applicable: {found.message!r}, but it applies"
        )
    if found.outcome == "passed" and fact is not None:
        return replace(found, outcome="failed", message=f"passed, although it cannot apply: {fact!r}")
    return found


def _with_killed(found: Finding, killed: int) -> Finding:
    """*found*; if it failed, with the number of processes that the kernel killed for lack of memory."""
    if found.outcome != "failed" or killed <= 0:
        return found
    processes = f"{killed} process{'es' * (killed > 1)}"
    note = f"the kernel of that machine killed {processes} during the run: out of memory"
    return replace(found, message=f"{found.message}\n{note}".strip())


@dataclass(slots=True)
class RunnerOutput:
    """What the lines of one run say; lines that other programs printed are ignored."""

    host: dict[str, Any] = field(default_factory=dict)
    started: dict[str, None] = field(default_factory=dict)  # ids of checks, in the order of the lines
    findings: dict[str, Finding] = field(default_factory=dict)
    complete: bool = False  # the runner reached its end, so checks without a finding were not selected
    invalid: list[str] = field(default_factory=list)  # the faults of invalid lines

    def read(self, line: bytes) -> Finding | None:
        """Read one line; return its finding, if it is the first finding of that check."""
        try:
            event = json_of(line, depth=DEPTH - _NESTING)
            kind = event.pop("event")
            if kind == "host" and hosts.fits(event):
                self.host = event
            elif kind == "start":
                if len(self.started) < _MOST:
                    self.started[str(event["id"])] = None
            elif kind == "finding":
                found = _finding(event)
                if found.id not in self.findings and len(self.findings) < _MOST:
                    self.findings[found.id] = found
                    return found
            self.complete = self.complete or kind == "end"
        except ValueError as error:
            if line.startswith(b'{"event"') and len(self.invalid) < _MOST:
                self.invalid.append(str(error))
        except (KeyError, AttributeError, TypeError):
            pass
        return None


def parse_output(stdout: bytes) -> RunnerOutput:
    output = RunnerOutput()
    for line in stdout.splitlines():
        output.read(line)
    return output


def _finding(event: Mapping[str, Any]) -> Finding:
    """:raises ValueError: *event* does not match the report's schema."""
    return finding_of({field.name: event[field.name] for field in fields(Finding)})
