"""The options of the gate → its inputs, and what it found, for people: for `gate` and `publish`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from torchkiln.attest.keys import NamedKey, public_keys
from torchkiln.cli.shared.reports import signature_line
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.trust_options import Rules
from torchkiln.errors import printable
from torchkiln.gate.check_status import CheckStatus
from torchkiln.gate.gate import Judgement
from torchkiln.gate.inputs import Inputs
from torchkiln.smoke import hosts
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.suite import load_suite
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

_STYLES = {"passed": "green", "missing": "yellow", "refused": "red"}
_WIDTH = 70  # characters of measured values
F = TypeVar("F", bound=Callable[..., Any])


def inputs_of(
    rules: Rules,
    suite_folder: Path | None,
    *,
    reports: Sequence[Path],
    trust: Sequence[NamedKey],
    nonce: str | None = None,
) -> Inputs:
    """As *rules* say; a laboratory's key that is named on the command line makes signatures a demand.

    :raises ConfigError: a file is missing or wrong; signatures are demanded, and no key is trusted.
    """
    found = Inputs(
        policy=rules.policy,
        suite=load_suite(suite_folder),
        runs=KeptRuns(store=Store(cache_root()), listener=SmokeLines()),
        keys=rules.keys,
        named=tuple(public_keys(trust)),
        given=tuple(reports),
        nonce=nonce,
    )
    found.demand_keys(rules.file)
    return found


def show(judged: Judgement) -> None:
    """On stderr: whose reports, by number, then the checks, a line each."""
    numbers = {}
    for number, signed_report in enumerate(judged.signed_reports, start=1):
        numbers[signed_report.name] = str(number)
        gpus = hosts.kinds(json.loads(signed_report.report.host)) or "no GPU"
        own = ", a run of this machine" if signed_report.own else ""
        told = f"report {number}: {signed_report.name}: {gpus}, {signature_line(signed_report)}{own}"
        click.echo(printable(told), err=True)
    table(
        ("CHECK", "TIER", "DEMANDED", "OUTCOME", "REPORT", "MEASURED"),
        [[printable(text) for text in _row(one, numbers)] for one in judged.statuses],
        styles=_STYLES,
        err=True,
    )


def _row(one: CheckStatus, numbers: Mapping[str, str]) -> tuple[str, ...]:
    told = one.measured or one.fact or (one.lacks[0] if one.required else "")
    short = told if len(told) <= _WIDTH else f"{told[: _WIDTH - 1]}…"
    where = ", ".join(numbers[name] for name in one.where) or "-"
    return one.check, str(one.tier), "yes" if one.required else "no", one.outcome, where, short


def reports_option(command: F) -> F:
    """The option --report."""
    return click.option(
        "--report",
        "report_files",
        type=click.Path(path_type=Path, exists=True),
        multiple=True,
        metavar="REPORT",
        help="a report, plain or signed, or a folder of them; several complete each other "
        "[default: this machine's own runs]",
    )(command)
