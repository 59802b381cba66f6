"""What is done with a smoke report: write its forms, sign it, show it, make it of a runner's own lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from torchkiln.attest.dsse import PrivateKey
from torchkiln.attest.keys import NamedKey, public_keys
from torchkiln.attest.roles import keys_for, role_named
from torchkiln.errors import ConfigError
from torchkiln.matrix import facts
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.smoke import attestation
from torchkiln.smoke import report as forms
from torchkiln.smoke.run import of_environment
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import faults, verdict
from torchkiln.util.files import write_atomic
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import read_file

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=False)
THERE = click.Path(path_type=Path, dir_okay=False, exists=True)
_PEM = 64 << 10  # bytes; a key has some hundred


def named_keys(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[NamedKey, ...]:
    """`PUBLIC.pem`, `publisher=PUBLIC.pem` or `laboratory=PUBLIC.pem`, each a file that must be there."""

    found = []
    for value in values:
        roles, path = role_named(value)
        found.append(NamedKey(path=THERE.convert(path, parameter, context), roles=roles))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forms:
    """Where a report goes, in which form."""

    report: Path | None
    junit: Path | None
    markdown: Path | None
    as_json: bool  # on stdout; else the verdict alone


def report_forms(command: F) -> F:
    """The options --report, --junit, --markdown and --json."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="the whole report on stdout"),
        click.option("--markdown", type=FILE, help="write a summary for a CI page"),
        click.option("--junit", type=FILE, help="write JUnit XML"),
        click.option("--report", "report_file", type=FILE, help="write report.json"),
    ):
        command = option(command)
    return command


def trust(command: F) -> F:
    """The option --trust."""
    return click.option(
        "--trust",
        "trust_files",
        callback=named_keys,
        multiple=True,
        metavar="[ROLE=]PUBLIC.pem",
        help="demand that this key signed it (several times: one of them); ROLE: laboratory, publisher",
    )(command)


@click.command("show")
@click.argument("report_file", metavar="REPORT", type=THERE)
@trust
@click.option("--json", "as_json", is_flag=True, help="verdict, stated verdict, faults, signers as JSON")
def show(report_file: Path, trust_files: tuple[NamedKey, ...], as_json: bool) -> None:
    """Print a report, plain or signed, and compute its verdict again from the raw values in it."""
    trusted = keys_for("laboratory", public_keys(trust_files))
    if trust_files and not trusted:
        raise ConfigError(
            "--trust: none of the keys counts for reports", hint="--trust laboratory=PUBLIC.pem"
        )
    signed_report = attestation.read(report_file, trusted)
    report, again = signed_report.report, verdict(signed_report.report.findings)
    if as_json:
        told = {finding.id: faults(finding) for finding in report.findings if faults(finding)}
        signed = {"signed": signed_report.signed, "signers": list(signed_report.signers)}
        click.echo(json.dumps({"verdict": again, "stated": report.verdict, "faults": told, **signed}))
    else:
        for line in forms.to_lines(report, facts.load().reasons()):
            click.echo(line)
        click.echo(f"\n{signature_line(signed_report)}\n{again}")
    attestation.demand_sound(signed_report, signed=bool(trusted))
    forms.demand_pass(report)


@click.command("read")
@click.argument("run_file", metavar="RUN.jsonl", type=THERE)
@click.option("--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="that ran")
@click.option("--when", metavar="TIME", help='when it ran, in UTC: "2026-11-21T17:05:16Z"')
@report_forms
def read(
    run_file: Path,
    suite_folder: Path | None,
    when: str | None,
    report_file: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Make the report of a run without an image: of what `smoke_tests/runner.py` printed elsewhere.

    Such a report tells of an environment, and no gate clears an image for it. Exit codes are `smoke run`'s.
    """

    demand(when, "when")
    try:
        told = read_file(run_file, forms.LIMIT)
    except OSError as error:
        raise ConfigError(f"{run_file}: {error.strerror}", hint="give runner.py's stdout") from None
    suite = load_suite(suite_folder)
    report = of_environment(told, suite, when=when, name=run_file.name)
    publish(report, Forms(report=report_file, junit=junit, markdown=markdown, as_json=as_json))
    forms.demand_pass(report)


def publish(report: SmokeReport, to: Forms, key: PrivateKey | None = None) -> None:
    """Write *report* in the wanted forms, signed with *key*; lines for people, then JSON or the verdict."""

    if to.report and key:
        write_atomic(attestation.beside(to.report), attestation.attest(report, key))
    if to.report:
        write_atomic(to.report, forms.to_json(report))
    if to.junit:
        write_atomic(to.junit, forms.to_junit(report))
    if to.markdown:
        write_atomic(to.markdown, forms.to_markdown(report).encode())
    show_lines(report)
    click.echo(forms.to_json(report).decode() if to.as_json else report.verdict, nl=not to.as_json)


def show_lines(report: SmokeReport) -> None:
    """*report* for people, on stderr."""

    for line in forms.to_lines(report, facts.load().reasons()):
        click.echo(line, err=True)


def demand(value: str | None, name: str) -> None:
    """That the option --*name* can stand in a report as its field of that name.

    :raises ConfigError: it cannot.
    """

    if wrong := sentences(value, shipped("smoke-report")["properties"][name], f"--{name}"):
        raise ConfigError.of(wrong, hint="see --help")


def signature_line(signed_report: SignedReport) -> str:
    """Whether a report is signed, and by whom, for people."""
    if signed_report.signers:
        return f"signed by {', '.join(signed_report.signers)}"
    return "signed, not looked at: name the signer's key with --trust" if signed_report.signed else "unsigned"
