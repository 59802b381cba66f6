"""SmokeReport -> report.json and back, JUnit XML, a Markdown summary, and lines for a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from torchkiln.errors import ConfigError, printable
from torchkiln.files import pretty_json
from torchkiln.nouns import Finding, SmokeReport, parse_digest
from torchkiln.schema import sentences, shipped
from torchkiln.strict import json_of, read_file
from torchkiln.verdict import faults, host_fault

SCHEMA = 1
_LIMIT = 16 << 20  # bytes; ours have fifty thousand, and measured values may be lists


def to_json(report: SmokeReport) -> bytes:
    """The file form, which smoke-report.schema.json describes."""
    return pretty_json(
        {
            "schema": SCHEMA,
            "image": report.image,
            "tag": report.tag,
            "suite": report.suite,
            "runtime": report.runtime,
            "verdict": report.verdict,
            "host": json.loads(report.host),
            "checks": [
                {
                    "id": finding.id,
                    "tier": finding.tier,
                    "outcome": finding.outcome,
                    "seconds": finding.seconds,
                    "message": finding.message,
                    "measured": json.loads(finding.measured),
                    "threshold": json.loads(finding.threshold),
                }
                for finding in report.findings
            ],
        }
    )


def from_json(data: bytes, *, where: str = "report.json") -> SmokeReport:
    """The inverse of `to_json`; the verdict is the stated one.

    :raises ConfigError: *data* is no report; every fault with its place in the file.
    """
    hint = "a report is what `smoke --report FILE` writes"
    try:
        document = json_of(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if wrong := sentences(document, shipped("smoke-report"), where):
        raise ConfigError.of(wrong, hint=hint)
    return SmokeReport(
        image=parse_digest(document["image"]),
        tag=document["tag"],
        suite=parse_digest(document["suite"]),
        runtime=document["runtime"],
        findings=tuple(_finding(check) for check in document["checks"]),
        verdict=document["verdict"],
        host=json.dumps(document["host"], sort_keys=True),
    )


def read(path: Path) -> SmokeReport:
    """The report in the file *path*.

    :raises ConfigError: it cannot be read, or is no report.
    """
    try:
        data = read_file(path, _LIMIT)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="name what `smoke --report FILE` wrote"
        ) from error
    return from_json(data, where=path.name)


def to_junit(report: SmokeReport) -> bytes:
    """JUnit XML, which knows no `not-applicable`: such a check is skipped there, the fact is its message."""
    suite = Xml.Element(
        "testsuite",
        name=f"smoke {report.tag}",
        tests=str(len(report.findings)),
        failures=str(sum(1 for finding in report.findings if faults(finding))),
        errors="0",
        skipped=str(sum(1 for finding in report.findings if _left_out(finding))),
        time=f"{sum(finding.seconds for finding in report.findings):.3f}",
    )
    properties = Xml.SubElement(suite, "properties")
    for name in ("image", "suite", "runtime", "verdict"):
        Xml.SubElement(properties, "property", name=name, value=str(getattr(report, name)))
    for finding in report.findings:
        case = Xml.SubElement(
            suite, "testcase", classname=f"tier{finding.tier}", name=finding.id, time=f"{finding.seconds:.3f}"
        )
        told = _xml_text("\n".join(faults(finding)))
        if told:
            Xml.SubElement(case, "failure", message=told.splitlines()[0]).text = told
        elif _left_out(finding):
            Xml.SubElement(case, "skipped", message=_xml_text(f"{finding.outcome}: {finding.message}"))
        Xml.SubElement(case, "system-out").text = _xml_text(finding.measured)
    return bytes(Xml.tostring(suite, encoding="utf-8", xml_declaration=True))


def to_markdown(report: SmokeReport) -> str:
    """A summary for a CI page."""
    head = [
        f"### {report.tag}: {report.verdict}",
        "",
        f"`{report.image}`, suite `{report.suite[:19]}`, runtime {report.runtime}",
        "",
        "| check | tier | outcome | seconds | |",
        "|---|---|---|---|---|",
    ]
    rows = [
        f"| {finding.id} | {finding.tier} | {finding.outcome} | {finding.seconds:.1f} | {_cell(finding)} |"
        for finding in report.findings
    ]
    return "\n".join((*head, *rows)) + "\n"


def to_lines(report: SmokeReport) -> list[str]:
    """For a terminal: a line a check with its bounded values, the whole message where it failed."""
    lines = [f"{report.tag}  {report.image}", f"suite {report.suite[:19]}  runtime {report.runtime}", ""]
    for finding in report.findings:
        lines.append(
            f"{finding.outcome:<15}{finding.id:<14}{finding.seconds:7.1f} s  {_values(finding)}".rstrip()
        )
        told = faults(finding) or ([finding.message] if finding.message else [])
        lines += [f"    {line}" for text in told for line in text.splitlines()]
        if fault := host_fault(finding):
            lines.append(f"    (the host: {fault})")
    return [printable(line) for line in lines]  # what an image says may steer no terminal


def _values(finding: Finding) -> str:
    """The numbers that have a bound; lists by their length, what is too long by nothing."""
    measured, bounded = json.loads(finding.measured), json.loads(finding.threshold)
    return "  ".join(f"{name} {_short(measured[name])}" for name in bounded if name in measured)


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"[{len(value)}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:40]


def _finding(check: dict[str, Any]) -> Finding:
    return Finding(
        id=check["id"],
        tier=check["tier"],
        outcome=check["outcome"],
        seconds=check["seconds"],
        message=check["message"],
        measured=json.dumps(check["measured"]),
        threshold=json.dumps(check["threshold"]),
    )


def _cell(finding: Finding) -> str:
    told = faults(finding) or [finding.message or _values(finding)]
    lines = told[0].splitlines() or [""]
    return lines[0][:160].replace("|", "\\|")


def _left_out(finding: Finding) -> bool:
    return finding.outcome in ("skipped", "not-applicable")


def _xml_text(text: str) -> str:
    """*text* without the control characters that XML has no way to say."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
