"""`torchkiln scan`: known vulnerabilities of an image, held against a threshold and a list that expires."""

from __future__ import annotations

import json
import os
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.console import say
from torchkiln.cli.shared.options import layout_option
from torchkiln.cli.shared.reports import THERE
from torchkiln.cli.verify import split_target
from torchkiln.errors import ConfigError, GateRefused, printable
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
from torchkiln.util.strict_json import read_file

LIST = Path("vulnerabilities.yaml")
_TOLD = 20  # refused findings in the error; stdout has them all
_LEVELS = ("unknown", "negligible", "low", "medium", "high", "critical")


@click.command("scan")
@click.argument("target", metavar="TAG|DIR:REF")
@click.option("--tool", type=click.Choice(["trivy", "grype"]), help="without it what is on the PATH")
@click.option("--report", type=THERE, metavar="FILE.json", help="run nothing: a scan that one of them wrote")
@click.option(
    "--fail-on", type=click.Choice(_LEVELS), default="high", show_default=True, help="this bad, or worse"
)
@click.option("--ignore-unfixed", is_flag=True, help="let pass what nobody has a fix for")
@click.option(
    "--allow",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"vulnerabilities that may be for a while; without it ./{LIST} if it is there",
)
@click.option("--timeout", type=click.FloatRange(min=1), default=900, show_default=True, metavar="SECONDS")
@layout_option()
@click.option("--json", "as_json", is_flag=True, help="one object on stdout")
def scan(
    target: str,
    tool: Tool | None,
    report: Path | None,
    fail_on: str,
    ignore_unfixed: bool,
    allow: Path | None,
    timeout: float,
    output: Path,
    as_json: bool,
) -> None:
    """Look for known vulnerabilities in an image, by Trivy or Grype, and refuse those that are too bad.

    Prints what counts, a line each: refused, or allowed until when. Ends with exit 7 where one is refused, 8
    where neither tool is there or it fails, 12 where a report is of another image.
    """
    if report and tool:
        raise click.UsageError("--tool is for a scan that is run; --report says itself whose it is")
    today = datetime.now(timezone.utc).date()
    named = allow or (LIST if LIST.exists() else None)
    allowances = allowance_list.read(named, on=today) if named else ()
    image = _image(target, output)
    found = _read(report) if report else _run(image, tool, timeout)
    confirm(found, manifest=image.manifest, config=image.config_digest)
    threshold = Threshold(severity=Severity[fail_on.upper()], unfixed="ignore" if ignore_unfixed else "count")
    judgement = judge(found, threshold, allowances, on=today)
    if as_json:
        click.echo(json.dumps(_told(image, found, threshold, judgement, today), indent=2))
    else:
        for line in _lines(judgement):
            click.echo(line)
    for line in _talk(image, found, judgement):
        say(line)
    if judgement.refused:
        raise _refusal(image, threshold, judgement, named or LIST, today)


def _image(target: str, output: Path) -> ImageOnDisk:
    """A tag of the layout *output*, or `DIR:REF`."""
    folder, ref = split_target(target)
    return open_layout(folder).image(ref) if folder.is_dir() else open_layout(output).image(target)


def _read(report: Path) -> Scan:
    try:
        data = read_file(report, LIMIT)
    except OSError as error:
        raise ConfigError(f"{report}: {error.strerror}", hint="give what Trivy or Grype wrote") from None
    return read(data, where=str(report))


def _run(image: ImageOnDisk, tool: Tool | None, timeout: float) -> Scan:
    chosen = run_scanner.find(tool, os.environ)
    say(f"{chosen.tool} looks at {image.ref}")
    return run_scanner.scan(image, chosen, os.environ, timeout_s=timeout)


def _lines(judgement: ScanVerdict) -> list[str]:
    """What counts, in columns."""
    rows = [(*_cells(found), "refused") for found in judgement.refused]
    rows += [(*_cells(found), f"allowed until {by.until}: {by.reason}") for found, by in judgement.allowed]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _cells(found: Vulnerability) -> tuple[str, ...]:
    mended = f"-> {found.fixed}" if found.fixed else "no fix"
    cells = (found.severity.word, found.id, found.package, found.installed, mended)
    return tuple(printable(cell) for cell in cells)


def _talk(image: ImageOnDisk, found: Scan, judgement: ScanVerdict) -> list[str]:
    """The sum of it, and what people should look at."""
    others = ", ".join(f"{count} {severity.word}" for severity, count in judgement.passed_over)
    by = " ".join((found.tool, found.version or "(version not told)"))
    lines = [
        f"{image.ref}, {found.system}, by {by}, database of {found.database or 'a day that is not told'}: "
        f"{len(judgement.refused)} refused, {len(judgement.allowed)} allowed, passed over {others or 'none'}"
    ]
    if found.ended:
        lines.append(f"{found.system} has no support any more: nobody looks for its faults")
    if found.hidden:
        lines.append(f"{found.tool} left out {found.hidden} findings by rules of its own")
    lines += [f"{entry.where}: {entry.id} has expired on {entry.until}" for entry in judgement.expired]
    lines += [f"{entry.where}: {entry.id} was not found; take it out" for entry in judgement.idle]
    return lines


def _refusal(
    image: ImageOnDisk, threshold: Threshold, judgement: ScanVerdict, listed: Path, today: date
) -> GateRefused:
    refused = judgement.refused
    told = [(found.id, str(found)) for found in refused[:_TOLD]]
    if len(refused) > _TOLD:
        told.append(("and", f"{len(refused) - _TOLD} more, all on stdout"))
    count = "1 vulnerability is" if len(refused) == 1 else f"{len(refused)} vulnerabilities are"
    first, until = refused[0], today + timedelta(days=30)
    entry = f"{{id: {first.id}, package: {first.package}, reason: WHY IT MAY BE, until: {until}}}"
    return GateRefused(
        f"{image.ref}: {count} {threshold.severity.word} or worse and not allowed",
        missing=told,
        hint=f"lock anew to get what is fixed; what may stay for a while is a line in {listed}: - {entry}",
    )


def _told(
    image: ImageOnDisk, found: Scan, threshold: Threshold, judgement: ScanVerdict, today: date
) -> dict[str, Any]:
    """The contract of `scan --json`."""
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
        "refused": [_fault(one) for one in judgement.refused],
        "allowed": [{**_fault(one), **_entry(by)} for one, by in judgement.allowed],
        "passed_over": {severity.word: count for severity, count in judgement.passed_over},
        "expired": [{"id": by.id, "package": by.package, **_entry(by)} for by in judgement.expired],
        "idle": [{"id": by.id, "package": by.package, **_entry(by)} for by in judgement.idle],
    }


def _fault(found: Vulnerability) -> dict[str, Any]:
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
