"""Write smoke reports as JSON, JUnit XML, Markdown and text, and read the JSON form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
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
LIMIT = 16 << 20  # bytes; reports usually have 50 kB, but measured values can be long lists
_ENGINES = ("docker", "podman")  # runtimes that give a container GPUs only by an option
_LINE = 160  # maximum characters of a message that is printed while the checks run
_JSON_FIELDS = ("measured", "threshold")  # fields of a Finding that hold JSON
_HINT = "pass a report that `smoke --report FILE` wrote"


def to_json(report: SmokeReport) -> bytes:
    """The JSON form, as in smoke-report.schema.json."""
    return pretty_json(document(report))


def document(report: SmokeReport) -> dict[str, Any]:
    values: dict[str, Any] = codec.plain(report)
    checks = [
        {**row, **{key: json.loads(row[key]) for key in _JSON_FIELDS}} for row in values.pop("findings")
    ]
    return {"schema": SCHEMA, **values, "host": json.loads(report.host), "checks": checks}


def from_json(data: bytes, *, where: str = "report.json") -> SmokeReport:
    """The inverse of `to_json`; the verdict is not computed again.

    :raises ConfigError: *data* is not a valid report; the message gives the location of each fault.
    """
    try:
        return from_document(json_of(data), where=where)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=_HINT) from error


def from_document(content: Any, *, where: str) -> SmokeReport:
    """The inverse of `document`; *content* can be any JSON value.

    :raises ConfigError: it is not a valid report; the message gives the location of each fault.
    """
    found = sentences(content, shipped("smoke-report"), where) or list(_inconsistencies(content, where))
    if found:
        raise ConfigError.of(found, hint=_HINT)
    values = {key: value for key, value in content.items() if key not in ("schema", "checks")}
    findings = [_finding_fields(check) for check in content["checks"]]
    host = json.dumps(content["host"], sort_keys=True)
    return codec.typed(SmokeReport, {**values, "host": host, "findings": findings})


def finding_of(check: Mapping[str, Any]) -> Finding:
    """The finding in *check*, an item of the list `checks` of a report.

    :raises ValueError: *check* does not match the schema.
    """
    definitions = shipped("smoke-report")["$defs"]
    for _, fault in violations(check, {"$ref": "#/$defs/Finding", "$defs": definitions}):
        raise ValueError(fault)
    return codec.typed(Finding, _finding_fields(check))


def _finding_fields(check: Mapping[str, Any]) -> dict[str, Any]:
    return {**check, **{key: json.dumps(check[key]) for key in _JSON_FIELDS}}


def _inconsistencies(content: dict[str, Any], where: str) -> Iterator[str]:
    """Faults that the schema cannot express."""
    if (content["image"] is None) != (content["tag"] is None):
        yield f"{where}: image and tag must both be set, or both be null"
    for name in ("verified", "root"):
        if content["image"] is None and content.get(name) is not None:
            yield f"{where}: {name} is set, but there is no image"
    names = [check["id"] for check in content["checks"]]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{where}: checks[{index}].id: duplicate {name!r}"


def subject(report: SmokeReport) -> str:
    """The name of what was tested: a tag, or the environment."""
    return report.tag or "this environment"


_LINKAGE = "if a package works without a library: --allow-missing LIBRARY|PACKAGE"


def demand_pass(report: SmokeReport) -> None:
    """Check that the verdict of *report* is `pass`.

    :raises SmokeFailed: it is `fail`.
    :raises SmokeInconclusive: it is `inconclusive`.
    """
    errors: dict[str, type[KilnError]] = {"fail": SmokeFailed, "inconclusive": SmokeInconclusive}
    if error := errors.get(report.verdict):
        checks = [finding.id for finding in report.findings if finding.outcome in ("failed", "skipped")]
        raise error(
            f"{subject(report)}: {report.verdict}: {', '.join(checks) or 'no check passed'}",
            hint=_project_hint(report) if report.project else _gpu_hint(report),
        )


def _project_hint(report: SmokeReport) -> str:
    failed = [finding for finding in report.findings if faults(finding)]
    if any(host_fault(finding) for finding in failed):
        return "if the project needs a GPU: run the checks on a host with a GPU, with --gpus all"
    return _LINKAGE if any(finding.id == "linkage" for finding in failed) else ""


def _gpu_hint(report: SmokeReport) -> str:
    """A hint how to provide GPUs, if checks of *report* were skipped without them; else empty."""
    skipped = any(finding.outcome == "skipped" and finding.tier for finding in report.findings)
    if report.verdict != "inconclusive" or not skipped or hosts.gpus(json.loads(report.host)):
        return ""
    if report.runtime in _ENGINES:
        return (
            "add --gpus all; the engine's host needs NVIDIA's driver, and nvidia-container-toolkit or a CDI "
            "specification"
        )
    return "run these checks on a host with NVIDIA's driver and GPUs: docs/gpu-hosts/README.md"


def to_junit(report: SmokeReport) -> bytes:
    """JUnit XML. It shows checks that do not apply as skipped, with the reason as the message."""
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
    for name in ("image", "suite", "runtime", "tool", "when", "verified", "root", "nonce", "verdict"):
        value = getattr(report, name)
        if value is not None:
            Xml.SubElement(properties, "property", name=name, value=value)
    if gpus := hosts.kinds(json.loads(report.host)):
        Xml.SubElement(properties, "property", name="gpus", value=_xml_text(gpus))
    for finding in report.findings:
        case = Xml.SubElement(
            suite, "testcase", classname=f"tier{finding.tier}", name=finding.id, time=f"{finding.seconds:.3f}"
        )
        message = _xml_text("\n".join(faults(finding)))
        if message:
            Xml.SubElement(case, "failure", message=message.splitlines()[0]).text = message
        elif _left_out(finding):
            Xml.SubElement(case, "skipped", message=_xml_text(f"{finding.outcome}: {finding.message}"))
        Xml.SubElement(case, "system-out").text = _xml_text(finding.measured)
    return bytes(Xml.tostring(suite, encoding="utf-8", xml_declaration=True))


def to_markdown(report: SmokeReport) -> str:
    """A summary in Markdown, for the page of a CI job."""
    gpus = hosts.kinds(json.loads(report.host))
    image = f"`{report.image}`, " if report.image else ""
    head = [
        f"### {subject(report)}: {report.verdict}",
        "",
        f"{image}suite `{report.suite[:19]}`, runtime {report.runtime}, {_cut(gpus) or 'no GPU'}",
        "",
        "| check | tier | outcome | seconds | |",
        "|---|---|---|---|---|",
    ]
    rows = [
        f"| {finding.id} | {finding.tier} | {finding.outcome} | {finding.seconds:.1f} | {_cell(finding)} |"
        for finding in report.findings
    ]
    return "\n".join((*head, *rows)) + "\n"


def to_line(finding: Finding, width: int, reasons: Mapping[str, str]) -> str:
    """The line for a finished check in a terminal: its values, or the first line of its message."""
    messages = "\n".join(_messages(finding, reasons)).splitlines()
    text = f"{messages[0][:_LINE]}{'…' * (len(messages[0]) > _LINE)}" if messages else values(finding)
    return printable(f"{_start(finding, width)}  {text}".rstrip())


def to_lines(
    report: SmokeReport, reasons: Mapping[str, str] | None = None, printed: Collection[Finding] = ()
) -> list[str]:
    """Lines for a terminal: the host, one line per check with its values, and the messages of failed checks.

    :param reasons: id of a fact -> its text, to explain why a check does not apply.
    :param printed: findings that `to_line` has printed already: only failed ones are repeated, with the whole
        message. If there are any, the last line counts the outcomes.
    """
    width = width_of(finding.id for finding in report.findings)
    root = f"{report.root}, " if report.root else ""
    lines = [
        *([""] if printed else []),
        "  ".join(filter(None, (subject(report), report.image))),
        *_of_project(report),
        f"suite {report.suite[:19]}  runtime {report.runtime}  {_made(report)}",
        *hosts.lines(json.loads(report.host)),
        *(
            [f"files    {root}compared with the image's layers at {report.verified}"]
            if report.verified
            else []
        ),
        "",
    ]
    for finding in report.findings:
        if finding in printed and not faults(finding):
            continue
        lines += _whole(finding, width, reasons or {})
        if fault := host_fault(finding):
            lines.append(f"    (the host: {fault})")
    if printed:
        counts = Counter(finding.outcome for finding in report.findings)
        lines.append(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return [printable(line) for line in lines]  # text of an image can contain terminal escape sequences


def _of_project(report: SmokeReport) -> list[str]:
    """Lines about the parent image of a project's image; none for other images."""
    if (run := report.project) is None:
        return []
    started = [f"Python runs at each start: {', '.join(run.at_start)}"] if run.at_start else []
    lacking = [f"may be missing: {', '.join(run.may_lack)}"] if run.may_lack else []
    return [
        f"on {run.parent}  {run.parent_image}",
        "torch and its libraries are those of the parent image: its reports prove them, not this run",
        *started,
        *lacking,
    ]


def _whole(finding: Finding, width: int, reasons: Mapping[str, str]) -> list[str]:
    messages = (line for message in _messages(finding, reasons) for line in message.splitlines())
    return [f"{_start(finding, width)}  {values(finding)}".rstrip(), *(f"    {line}" for line in messages)]


def width_of(ids: Iterable[str]) -> int:
    return max((14, *(len(name) + 2 for name in ids)))


def values(finding: Finding) -> str:
    """The measured values that have a bound, shortened; for lists only their length."""
    measured, bounded = json.loads(finding.measured), json.loads(finding.threshold)
    return "  ".join(f"{name} {_short(measured[name])}" for name in bounded if name in measured)


def _start(finding: Finding, width: int) -> str:
    return f"{finding.outcome:<15}{finding.id:<{width}}{finding.seconds:7.1f} s"


def _messages(finding: Finding, reasons: Mapping[str, str]) -> list[str]:
    if finding.outcome == "not-applicable" and finding.message in reasons:
        return [f"{finding.message}: {reasons[finding.message]}"]
    return faults(finding) or ([finding.message] if finding.message else [])


def _made(report: SmokeReport) -> str:
    when = f", {report.when}" if report.when else ""
    return f"torchkiln {report.tool}{when}" + (f", nonce {report.nonce}" if report.nonce else "")


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"[{len(value)}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:40]


def _cell(finding: Finding) -> str:
    messages = faults(finding) or [finding.message or values(finding)]
    lines = messages[0].splitlines() or [""]
    return _cut(lines[0])


def _cut(text: str) -> str:
    """*text* for a cell of a Markdown table, shortened and escaped."""
    return text[:160].replace("|", "\\|")


def _left_out(finding: Finding) -> bool:
    return finding.outcome in ("skipped", "not-applicable")


def _xml_text(text: str) -> str:
    """*text* without the control characters that XML does not allow."""
    return "".join(char for char in text if char >= " " or char in "\t\n")
