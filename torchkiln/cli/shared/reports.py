"""Writes, signs and shows smoke reports: `smoke show`, `smoke read`, and report options of `smoke run`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import click

from torchkiln.attest.dsse import PrivateKey
from torchkiln.attest.keys import NamedKey, keys_for, private_key, public_keys
from torchkiln.cli.shared.options import EXISTING_FILE, FILE, Decorator, gathered, suite_option
from torchkiln.cli.shared.tables import paragraph
from torchkiln.cli.shared.terminal import echo
from torchkiln.errors import ConfigError
from torchkiln.matrix import facts
from torchkiln.model.report import ROLES, Finding, Role, SignedReport, SmokeReport
from torchkiln.smoke import attestation
from torchkiln.smoke import report as forms
from torchkiln.smoke.run import of_environment
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import faults, verdict
from torchkiln.util.files import write_atomic
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import read_given


def in_roles(text: str, only: Role | None) -> tuple[tuple[Role, ...], str]:
    """The roles and the value in *text*, `ROLE=VALUE`.

    :param only: the role of a value without one; None: the command accepts signatures in both roles.
    """
    role, equals, value = text.partition("=")
    if not (equals and role.isidentifier()):  # such as "https://…"
        role, value = only or "", text
    if value and role in ROLES:
        return ROLES[role], value
    lacks = "role" if value else "value"
    wrong = f"{text!r} has no {lacks}" if role in ("", *ROLES) else f"{role!r} is not a role"
    value = value or "VALUE"
    raise click.BadParameter(f"{wrong}; write publisher={value}, laboratory={value}, or any={value} for both")


def named_keys(only: Role | None) -> Callable[..., tuple[NamedKey, ...]]:
    """A callback for `ROLE=PUBLIC.pem`; each file must exist."""
    return lambda context, parameter, values: tuple(
        NamedKey(path=EXISTING_FILE.convert(path, parameter, context), roles=roles)
        for roles, path in (in_roles(value, only) for value in values)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFiles:
    report: Path | None
    junit: Path | None
    markdown: Path | None
    as_json: bool  # print the whole report on stdout, not only the verdict


report_options = gathered(
    "files",
    ReportFiles,
    click.option("--report", type=FILE, help="write the report, JSON"),
    click.option("--junit", type=FILE, help="write JUnit XML"),
    click.option("--markdown", type=FILE, help="write a summary for a CI page"),
    click.option("--json", "as_json", is_flag=True, help="print the whole report as JSON"),
)
key_option = click.option(
    "--key",
    "key_file",
    type=EXISTING_FILE,
    metavar="KEY.pem",
    help="with --report: also write a signed report beside it",
)


def trust_option(only: Role | None) -> Decorator:
    """--trust of commands that read reports; *only*: the role of a key without one."""
    return click.option(
        "--trust",
        "trust_files",
        callback=named_keys(only),
        multiple=True,
        metavar="[ROLE=]PUBLIC.pem" if only else "ROLE=PUBLIC.pem",
        help="require a signature of reports by this key in the role laboratory, or in any; repeatable",
    )


@click.command("show")
@click.argument("report_file", metavar="REPORT", type=EXISTING_FILE)
@trust_option("laboratory")
@click.option(
    "--json", "as_json", is_flag=True, help="print verdict, stated verdict, faults, signers as JSON"
)
def show(report_file: Path, trust_files: tuple[NamedKey, ...], as_json: bool) -> None:
    """Print a report, signed or not, and compute its verdict again from its raw values."""
    trusted = keys_for("laboratory", public_keys(trust_files))
    if trust_files and not trusted:
        raise ConfigError(
            "--trust: no key has the role laboratory, which signs reports",
            hint="write --trust laboratory=PUBLIC.pem",
        )
    signed_report = attestation.read(report_file, trusted)
    report, computed = signed_report.report, verdict(signed_report.report.findings)
    if as_json:
        failed = {finding.id: faults(finding) for finding in report.findings if faults(finding)}
        signed = {"signed": signed_report.signed, "signers": list(signed_report.signers)}
        click.echo(json.dumps({"verdict": computed, "stated": report.verdict, "faults": failed, **signed}))
    else:
        for line in forms.to_lines(report, facts.load().reasons()):
            echo(paragraph(line))
        echo(f"\n{signature_line(signed_report)}\n{computed}")
    attestation.demand_sound(signed_report, signed=bool(trusted))
    forms.demand_pass(report)


@click.command("read")
@click.argument("run_file", metavar="RUN.jsonl", type=EXISTING_FILE)
@suite_option
@click.option("--when", metavar="TIME", help='when the runner ran, in UTC: "2026-11-21T17:05:16Z"')
@report_options
def read(run_file: Path, suite_folder: Path | None, when: str | None, files: ReportFiles) -> None:
    """Make a report from the output of `smoke_tests/runner.py`, run without an image.

    Such a report describes an environment; the gate does not accept it for an image. The exit codes are
    those of `smoke run`.
    """
    demand(when, "when")
    output = read_given(run_file, forms.LIMIT, hint="name the file with runner.py's stdout")
    report = of_environment(output, load_suite(suite_folder), when=when, name=run_file.name)
    publish(report, files)
    forms.demand_pass(report)


def publish(
    report: SmokeReport, to: ReportFiles, key: PrivateKey | None = None, *, printed: Collection[Finding] = ()
) -> None:
    """Write *report* to its files, signed with *key*; print it on stderr, and JSON or the verdict on stdout.

    :param printed: the findings that were printed while the checks ran.
    """
    if to.report and key:
        write_atomic(attestation.beside(to.report), attestation.attest(report, key))
    if to.report:
        write_atomic(to.report, forms.to_json(report))
    if to.junit:
        write_atomic(to.junit, forms.to_junit(report))
    if to.markdown:
        write_atomic(to.markdown, forms.to_markdown(report).encode())
    show_lines(report, printed)
    echo(forms.to_json(report).decode() if to.as_json else report.verdict, nl=not to.as_json)


def key_of(key_file: Path | None, files: ReportFiles, nonce: str | None) -> PrivateKey | None:
    """The key that signs the report; it is read before the run, which may take long."""
    if key_file and not files.report:
        raise ConfigError("--key requires --report", hint="add --report report.json")
    demand(nonce, "nonce")
    return private_key(key_file) if key_file else None


def show_lines(report: SmokeReport, printed: Collection[Finding]) -> None:
    """Print *report* on stderr as text, without the findings in *printed*, which are on stderr already."""
    for line in forms.to_lines(report, facts.load().reasons(), printed):
        echo(paragraph(line, err=True), err=True)


def demand(value: str | None, name: str) -> None:
    """:raises ConfigError: the option --*name* is not valid for the field *name* of a report."""
    if wrong := sentences(value, shipped("smoke-report")["properties"][name], f"--{name}"):
        raise ConfigError.of(wrong, hint="see: torchkiln smoke run --help")


def signature_line(signed_report: SignedReport) -> str:
    """A text that says whether a report is signed, and by which keys."""
    if signed_report.signers:
        return f"signed by {', '.join(signed_report.signers)}"
    hint = "name the key with --trust laboratory=PUBLIC.pem"
    return f"signed, not verified: {hint}" if signed_report.signed else "unsigned"
