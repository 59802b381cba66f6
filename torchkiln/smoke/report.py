"""SmokeReport -> report.json and back, JUnit XML, a Markdown summary, and lines for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as Xml

from torchkiln.errors import ConfigError, KilnError, SmokeFailed, SmokeInconclusive, printable
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.verdict import faults, host_fault
from torchkiln.util import codec
from torchkiln.util.files import pretty_json
from torchkiln.util.schema import sentences, shipped, violations
from torchkiln.util.strict_json import json_of

SCHEMA = 2
LIMIT = 16 << 20  # bytes; ours have fifty thousand, and measured values may be lists
_TEXTS = ("measured", "threshold")  # JSON texts of a Finding
_HINT = "a report is what `smoke --report FILE` writes"


def to_json(report: SmokeReport) -> bytes:
    """The file form, which smoke-report.schema.json describes."""
    return pretty_json(document(report))


def document(report: SmokeReport) -> dict[str, Any]:
    """The file form as plain values."""
    values: dict[str, Any] = codec.plain(report)
    checks = [{**one, **{key: json.loads(one[key]) for key in _TEXTS}} for one in values.pop("findings")]
    return {"schema": SCHEMA, **values, "host": json.loads(report.host), "checks": checks}


def from_json(data: bytes, *, where: str = "report.json") -> SmokeReport:
    """The inverse of `to_json`; the verdict is the stated one.

    :raises ConfigError: *data* is no report; every fault with its place in the file.
    """
    try:
        return from_document(json_of(data), where=where)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=_HINT) from error


def from_document(told: Any, *, where: str) -> SmokeReport:
    """The inverse of `document`, of any JSON value.

    :raises ConfigError: it is no report; every fault with its place.
    """
    if wrong := sentences(told, shipped("smoke-report"), where) or list(_meaning_faults(told, where)):
        raise ConfigError.of(wrong, hint=_HINT)
    values = {key: value for key, value in told.items() if key not in ("schema", "checks")}
    findings = [_finding_fields(check) for check in told["checks"]]
    host = json.dumps(told["host"], sort_keys=True)
    return codec.typed(SmokeReport, {**values, "host": host, "findings": findings})


def finding_of(check: Mapping[str, Any]) -> Finding:
    """One of a document's `checks`.

    :raises ValueError: no report could hold it.
    """
    definitions = shipped("smoke-report")["$defs"]
    for _, wrong in violations(check, {"$ref": "#/$defs/Finding", "$defs": definitions}):
        raise ValueError(wrong)
    return codec.typed(Finding, _finding_fields(check))


def schema() -> dict[str, Any]:
    """The JSON Schema of `document`: of `SmokeReport`, with `findings` under `checks`, and of a host."""
    found, host = codec.schema_of(SmokeReport), dict(shipped("host"))
    definitions = {**found["$defs"], **host.pop("$defs"), "host": host}
    properties = found["properties"]
    checks = properties.pop("findings")
    return {
        "$schema": host.pop("$schema"),
        "title": "What the checks saw inside one image, or in an environment without one",
        **found,
        "required": ["schema", *(key for key in properties), "checks"],
        "properties": {"schema": {"const": SCHEMA}, **properties, "checks": checks},
        "$defs": definitions,
    }


def _finding_fields(check: Mapping[str, Any]) -> dict[str, Any]:
    return {**check, **{key: json.dumps(check[key]) for key in _TEXTS}}


def _meaning_faults(told: dict[str, Any], where: str) -> Iterator[str]:
    """What no schema can tell."""
    if (told["image"] is None) != (told["tag"] is None):
        yield f"{where}: an image has a digest and a tag, an environment neither"
    names = [check["id"] for check in told["checks"]]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield f"{where}: checks[{at}].id: {name!r} stands twice"


def subject(report: SmokeReport) -> str:
    """What was tested, for people: a tag, or the environment."""
    return report.tag or "this environment"


def demand_pass(report: SmokeReport) -> None:
    """That the checks passed.

    :raises SmokeFailed: the image failed.
    :raises SmokeInconclusive: the host did.
    """
    errors: dict[str, type[KilnError]] = {"fail": SmokeFailed, "inconclusive": SmokeInconclusive}
    if error := errors.get(report.verdict):
        told = [finding.id for finding in report.findings if finding.outcome in ("failed", "skipped")]
        raise error(f"{subject(report)}: {report.verdict}: {', '.join(told) or 'nothing was proved'}")


def to_junit(report: SmokeReport) -> bytes:
    """JUnit XML, which knows no `not-applicable`: such a check is skipped there, the fact is its message."""
    suite = Xml.Element(
        "testsuite",
        name=f"smoke {subject(report)}",
        tests=str(len(report.findings)),
        failures=str(sum(1 for finding in report.findings if faults(finding))),
        errors="0",
        skipped=str(sum(1 for finding in report.findings if _left_out(finding))),
        time=f"{sum(finding.seconds for finding in report.findings):.3f}",
    )
    properties = Xml.SubElement(suite, "properties")
    for name in ("image", "suite", "runtime", "tool", "when", "nonce", "verdict"):
        value = getattr(report, name)
        if value is not None:
            Xml.SubElement(properties, "property", name=name, value=value)
    if named := hosts.kinds(json.loads(report.host)):
        Xml.SubElement(properties, "property", name="gpus", value=_xml_text(named))
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
    named = hosts.kinds(json.loads(report.host))
    image = f"`{report.image}`, " if report.image else ""
    head = [
        f"### {subject(report)}: {report.verdict}",
        "",
        f"{image}suite `{report.suite[:19]}`, runtime {report.runtime}, {_cut(named) or 'no GPU'}",
        "",
        "| check | tier | outcome | seconds | |",
        "|---|---|---|---|---|",
    ]
    rows = [
        f"| {finding.id} | {finding.tier} | {finding.outcome} | {finding.seconds:.1f} | {_cell(finding)} |"
        for finding in report.findings
    ]
    return "\n".join((*head, *rows)) + "\n"


def to_lines(report: SmokeReport, reasons: Mapping[str, str] | None = None) -> list[str]:
    """For a terminal: the host, a line a check with its bounded values, the whole message where it failed.

    *reasons* has the words of the facts for which a check does not apply, by their ids.
    """
    wide = max(14, *(len(finding.id) + 2 for finding in report.findings), 0)
    lines = [
        "  ".join(filter(None, (subject(report), report.image))),
        f"suite {report.suite[:19]}  runtime {report.runtime}  {_made(report)}",
        *hosts.lines(json.loads(report.host)),
        "",
    ]
    for finding in report.findings:
        lines.append(
            f"{finding.outcome:<15}{finding.id:<{wide}}{finding.seconds:7.1f} s  {values(finding)}".rstrip()
        )
        told = faults(finding) or ([finding.message] if finding.message else [])
        if finding.outcome == "not-applicable" and reasons and finding.message in reasons:
            told = [f"{finding.message}: {reasons[finding.message]}"]
        lines += [f"    {line}" for text in told for line in text.splitlines()]
        if fault := host_fault(finding):
            lines.append(f"    (the host: {fault})")
    return [printable(line) for line in lines]  # what an image says may steer no terminal


def values(finding: Finding) -> str:
    """The numbers that have a bound; lists by their length, what is too long by nothing."""
    measured, bounded = json.loads(finding.measured), json.loads(finding.threshold)
    return "  ".join(f"{name} {_short(measured[name])}" for name in bounded if name in measured)


def _made(report: SmokeReport) -> str:
    when = f", {report.when}" if report.when else ""
    return f"torchkiln {report.tool}{when}" + (f", nonce {report.nonce}" if report.nonce else "")


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"[{len(value)}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:40]


def _cell(finding: Finding) -> str:
    told = faults(finding) or [finding.message or values(finding)]
    lines = told[0].splitlines() or [""]
    return _cut(lines[0])


def _cut(text: str) -> str:
    """*text* as it may stand in a table of Markdown."""
    return text[:160].replace("|", "\\|")


def _left_out(finding: Finding) -> bool:
    return finding.outcome in ("skipped", "not-applicable")


def _xml_text(text: str) -> str:
    """*text* without the control characters that XML has no way to say."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
