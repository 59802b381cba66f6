"""The commands that provide what the gate misses, with the keys and files that the user gave."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchkiln.gate.check_status import GPUS, CheckStatus
from torchkiln.model.report import SignedReport

_NAMES = 6  # maximum checks that a command names; for more checks, it has --tier


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenOptions:
    """Options of the command that the hints repeat, as the user wrote them."""

    key: str | None = None  # --key, if it is the private key of a laboratory that is trusted
    trust: tuple[str, ...] = ()  # --trust, of laboratories
    reports: tuple[str, ...] = ()  # --report
    nonce: str | None = None  # --nonce


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """What must run for the image *tag*."""

    tag: str
    checks: tuple[CheckStatus, ...]
    suite: tuple[CheckStatus, ...]  # all checks
    gpus: tuple[str, ...]  # capabilities on which a check is not proved
    signed: bool  # the policy requires signatures
    reports: tuple[SignedReport, ...]
    of_project: bool = False


def commands(needed: Needed, given: GivenOptions) -> Iterator[str]:
    """The commands that provide what is *needed*."""
    untrusted = [report for report in needed.reports if not (report.signers or report.own)]
    signs = needed.signed or bool(untrusted)
    if any(report.signed for report in untrusted):
        yield "if you trust the key that signed the report, name it: --trust laboratory=PUBLIC.pem"
    words = ["torchkiln", "smoke", needed.tag, *_selection(needed.checks, needed.suite)]
    if needed.of_project:  # names no checks: all checks of a project run within a minute
        words = ["torchkiln", "project", "smoke", "DIR"]
    words += ["--nonce", given.nonce] if given.nonce else []
    words += ["--report", "FILE", *(["--key", given.key or "KEY.pem"] if signs else [])]
    yield f"run the missing checks{_host(needed)}: {shlex.join(words)}"
    if signs and given.trust and not given.key:
        yield f"KEY.pem is the private key of {' or '.join(given.trust)}"
    if signs or given.reports:
        trust = "" if given.trust or not signs else " --trust laboratory=PUBLIC.pem"
        yield f"then repeat this command with --report FILE{trust}"


def _selection(checks: Sequence[CheckStatus], suite: Sequence[CheckStatus]) -> list[str]:
    """The options of `smoke` that select *checks*: --only with their names, or --tier for whole tiers."""
    names = {status.check for status in checks}
    whole = any(
        names >= {status.check for status in suite if status.tier == tier}
        for tier in {status.tier for status in checks}
    )
    if not names or whole or len(names) > _NAMES:
        return ["--tier", str(max((status.tier for status in checks), default=0))]
    return [word for status in checks for word in ("--only", status.check)]


def _host(needed: Needed) -> str:
    """Words for the host that the checks require; empty if any host is enough."""
    count = max((GPUS[status.tier] for status in needed.checks), default=0)
    where = f" on a host with {count} GPU{'s' if count > 1 else ''}" if count else ""
    return where + (f" of capability {', then '.join(needed.gpus)}" if needed.gpus else "")
