"""`torchkiln scan`: scans an image for known vulnerabilities, and refuses those that are not allowed."""

from __future__ import annotations

import json
import os
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.console import say
from torchkiln.cli.shared.image_names import named_image
from torchkiln.cli.shared.options import EXISTING_FILE, FILE, json_option, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.targets import name_argument
from torchkiln.errors import GateRefused, printable
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.sbom import allowances as allowance_list
from torchkiln.sbom import scanner as run_scanner
from torchkiln.sbom.scanner_report import LIMIT, read
from torchkiln.sbom.vulnerabilities import (
    AllowedVulnerability,
    Scan,
    ScanVerdict,
    Severity,
    Threshold,
    Tool,
    Vulnerability,
    confirm,
    judge,
)
from torchkiln.util.strict_json import read_given

LIST = Path("vulnerabilities.yaml")
_LISTED = 20  # maximum of refused findings in the error message; stdout has all of them
_LEVELS = ("unknown", "negligible", "low", "medium", "high", "critical")


@click.command("scan")
@name_argument
@selection
@click.option(
    "--tool", type=click.Choice(["trivy", "grype"]), help="the scanner  [default: the one on the PATH]"
)
@click.option(
    "--report",
    type=EXISTING_FILE,
    metavar="FILE.json",
    help="run no scanner; read this report of Trivy or Grype",
)
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    default="high",
    show_default=True,
    help="refuse vulnerabilities of this severity or higher",
)
@click.option("--ignore-unfixed", is_flag=True, help="ignore vulnerabilities that have no fix")
@click.option(
    "--allow",
    type=FILE,
    help=f"a list of vulnerabilities allowed until a date  [default: ./{LIST}, if it exists]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="stop the scanner after this time",
)
@layout_option()
@json_option
def scan(
    name: str | None,
    chosen: CellOptions,
    tool: Tool | None,
    report: Path | None,
    fail_on: str,
    ignore_unfixed: bool,
    allow: Path | None,
    timeout: float,
    output: Path,
    as_json: bool,
) -> None:
    """Scan an image for known vulnerabilities with Trivy or Grype; refuse severe ones that are not allowed.

    Prints a line for each vulnerability that is refused or allowed. Exits with 7 if one is refused, with 8 if
    no scanner is installed or the scanner fails, with 12 if the report is about another image.
    """
    if report and tool:
        raise click.UsageError("--report cannot be used with --tool: a report needs no scanner")
    named = named_image(name, output, chosen, command="scan")
    today = datetime.now(timezone.utc).date()
    listed = allow or (LIST if LIST.exists() else None)
    allowances = allowance_list.read(listed, on=today) if listed else ()
    image = open_layout(named.layout).image(named.ref)
    found = _read(report) if report else _run(image, tool, timeout)
    confirm(found, manifest=image.manifest, config=image.config_digest)
    threshold = Threshold(severity=Severity[fail_on.upper()], unfixed="ignore" if ignore_unfixed else "count")
    judgement = judge(found, threshold, allowances, on=today)
    if as_json:
        click.echo(json.dumps(_json(image, found, threshold, judgement, today), indent=2))
    else:
        table((), _rows(judgement), text=(5,))
    for line in _summary(image, found, judgement):
        say(line)
    if judgement.refused:
        raise _refusal(image, threshold, judgement, listed or LIST, today)


def _read(report: Path) -> Scan:
    data = read_given(report, LIMIT, hint="specify a JSON report of Trivy or Grype")
    return read(data, where=str(report))


def _run(image: ImageOnDisk, tool: Tool | None, timeout: float) -> Scan:
    chosen = run_scanner.find(tool, os.environ)
    say(f"scanning {image.ref} with {chosen.tool}")
    return run_scanner.scan(image, chosen, os.environ, timeout_s=timeout)


def _rows(judgement: ScanVerdict) -> list[tuple[str, ...]]:
    """The refused and the allowed vulnerabilities."""
    rows = [(*_cells(found), "refused") for found in judgement.refused]
    rows += [(*_cells(found), f"allowed until {by.until}: {by.reason}") for found, by in judgement.allowed]
    return rows


def _cells(found: Vulnerability) -> tuple[str, ...]:
    fix = f"-> {found.fixed}" if found.fixed else "no fix"
    cells = (found.severity.word, found.id, found.package, found.installed, fix)
    return tuple(printable(cell) for cell in cells)


def _summary(image: ImageOnDisk, found: Scan, judgement: ScanVerdict) -> list[str]:
    """How many vulnerabilities were found, and warnings."""
    others = ", ".join(f"{count} {severity.word}" for severity, count in judgement.passed_over)
    by = " ".join((found.tool, found.version or "(unknown version)"))
    lines = [
        f"{image.ref}, {found.system}, by {by}, database of {found.database or 'unknown date'}: "
        f"{len(judgement.refused)} refused, {len(judgement.allowed)} allowed, not counted: {others or 'none'}"
    ]
    if found.ended:
        lines.append(f"warning: {found.system} is no longer supported: new vulnerabilities may be missing")
    if found.hidden:
        lines.append(f"warning: {found.tool} omitted {found.hidden} findings by its own rules")
    lines += [f"{entry.where}: {entry.id} expired on {entry.until}" for entry in judgement.expired]
    lines += [f"{entry.where}: {entry.id} was not found; remove it" for entry in judgement.idle]
    return lines


def _refusal(
    image: ImageOnDisk, threshold: Threshold, judgement: ScanVerdict, listed: Path, today: date
) -> GateRefused:
    refused = judgement.refused
    lines = [(found.id, str(found)) for found in refused[:_LISTED]]
    if len(refused) > _LISTED:
        lines.append(("and", f"{len(refused) - _LISTED} more, all on stdout"))
    count = "1 vulnerability is" if len(refused) == 1 else f"{len(refused)} vulnerabilities are"
    first, until = refused[0], today + timedelta(days=30)
    entry = f"{{id: {first.id}, package: {first.package}, reason: WHY IT IS ALLOWED, until: {until}}}"
    return GateRefused(
        f"{image.ref}: {count} {threshold.severity.word} or worse and not allowed",
        missing=lines,
        hint=f"to get fixes: torchkiln lock TAG --upgrade; to allow one for now, add to {listed}: - {entry}",
    )


def _json(
    image: ImageOnDisk, found: Scan, threshold: Threshold, judgement: ScanVerdict, today: date
) -> dict[str, Any]:
    """The object that `scan --json` prints."""
    return {
        "image": image.ref,
        "digest": image.manifest,
        "tool": found.tool,
        "version": found.version,
        "database": found.database,
        "system": found.system,
        "supported": not found.ended,
        "hidden": found.hidden,
        "day": str(today),
        "fail_on": threshold.severity.word,
        "unfixed": threshold.unfixed,
        "refused": [_vulnerability(each) for each in judgement.refused],
        "allowed": [{**_vulnerability(each), **_entry(by)} for each, by in judgement.allowed],
        "passed_over": {severity.word: count for severity, count in judgement.passed_over},
        "expired": [{"id": by.id, "package": by.package, **_entry(by)} for by in judgement.expired],
        "idle": [{"id": by.id, "package": by.package, **_entry(by)} for by in judgement.idle],
    }


def _vulnerability(found: Vulnerability) -> dict[str, Any]:
    return {
        "id": found.id,
        "aliases": list(found.aliases),
        "package": found.package,
        "installed": found.installed,
        "fixed": found.fixed,
        "severity": found.severity.word,
        "kind": found.kind,
        "path": found.path,
    }


def _entry(by: AllowedVulnerability) -> dict[str, str]:
    return {"reason": by.reason, "until": str(by.until), "where": by.where}
