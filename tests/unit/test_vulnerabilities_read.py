"""The JSON of Trivy and of Grype gives the same result; other documents are refused with the position."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.document_strategies import mutated
from tests.scans import DOCUMENTS, FAULTS, by_grype, by_trivy
from torchkiln.errors import VerificationFailed
from torchkiln.sbom.scanner_report import complete, read
from torchkiln.sbom.vulnerabilities import Scan, Severity
from torchkiln.util.schema import KEYWORDS, shipped, violations

TOOLS = sorted(DOCUMENTS)


def scan_of(content: Any) -> Scan:
    return read(json.dumps(content).encode(), where="scan.json")


def refusal(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(VerificationFailed) as refused:
        read(data, where="scan.json")
    assert refused.value.hint
    return refused.value.message


@pytest.mark.parametrize("tool", TOOLS)
def test_the_findings_are_those_of_the_image(tool: str) -> None:
    """The worst is first. For wheels, Grype reports the names of GitHub's advisories."""
    found = scan_of(DOCUMENTS[tool]()).findings

    assert [
        (finding.package, finding.installed, finding.fixed, finding.severity.word) for finding in found
    ] == [(package, installed, fixed, severity) for package, _, installed, fixed, severity, _ in FAULTS]
    assert all(
        cve in (finding.id, *finding.aliases) for finding, (_, cve, *_) in zip(found, FAULTS, strict=True)
    )
    assert all(finding.id not in finding.aliases for finding in found)


def test_both_tools_agree_on_the_same_image() -> None:
    """All values that are compared and the paths are the same; some names and types differ."""
    trivy, grype = scan_of(by_trivy()), scan_of(by_grype())

    assert trivy.config == grype.config
    for finding, other in zip(trivy.findings, grype.findings, strict=True):
        assert finding.id in (other.id, *other.aliases)
        assert replace(finding, id="", aliases=(), kind="") == replace(other, id="", aliases=(), kind="")


def test_trivys_data_about_itself_and_the_image() -> None:
    found = scan_of(by_trivy())
    newer = scan_of(by_trivy(Trivy={"Version": "0.72.0"}))

    assert (found.tool, found.version, newer.version, found.database) == ("trivy", None, "0.72.0", None)
    assert (found.system, found.ended, found.hidden) == ("debian 12.9", False, 0)
    assert (found.manifest, found.config) == (None, "sha256:" + "c" * 64)


def test_grypes_data_about_itself_and_the_image() -> None:
    """Until version 0.87, the date of Grype's database is in another field."""
    found = scan_of(by_grype())
    older = scan_of(
        by_grype(descriptor={"name": "grype", "version": "0.66.0", "db": {"built": "2023-09-01T01:26:55Z"}})
    )

    assert (found.tool, found.version, found.database) == ("grype", "0.115.0", "2026-11-22T06:00:00Z")
    assert (older.version, older.database) == ("0.66.0", "2023-09-01T01:26:55Z")
    assert (found.system, found.ended, found.hidden) == ("debian 12", False, 0)
    assert (found.manifest, found.config) == ("sha256:" + "d" * 64, "sha256:" + "c" * 64)


@pytest.mark.parametrize(
    ("content", "version", "database"),
    [
        (b'{"Version": "0.59.1", "VulnerabilityDB": {"UpdatedAt": "2026-11-22"}}', "0.59.1", "2026-11-22"),
        (b'{"Version": "0.59.1"}', "0.59.1", None),
        (b'{"Version": 1, "VulnerabilityDB": {"UpdatedAt": 2}}', None, None),
        (b'{"VulnerabilityDB": []}', None, None),
        (b"[]", None, None),
        (b"Version: 0.59.1", None, None),
    ],
)
def test_trivys_version_completes_its_scan(content: bytes, version: str | None, database: str | None) -> None:
    """If the output of `trivy version` is missing or cannot be read, it is ignored."""
    found = complete(scan_of(by_trivy()), content)
    assert (found.version, found.database) == (version, database)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unsupported_system_is_reported(tool: str) -> None:
    changes: dict[str, Any] = {
        "trivy": {"Metadata": {"OS": {"Family": "debian", "Name": "10.13", "EOSL": True}}},
        "grype": {"alertsByPackage": [{"package": {}, "alerts": [{"type": "distro-eol", "message": "old"}]}]},
    }
    assert scan_of(DOCUMENTS[tool](**changes[tool])).ended


@pytest.mark.parametrize("tool", TOOLS)
def test_findings_that_the_tool_ignored_are_counted(tool: str) -> None:
    changes: dict[str, Any] = {
        "trivy": {"Results": [{"Type": "debian", "ExperimentalModifiedFindings": [{}, {}]}]},
        "grype": {"ignoredMatches": [{}, {}]},
    }
    assert scan_of(DOCUMENTS[tool](**changes[tool])).hidden == 2


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_found_and_nothing_recognised(tool: str) -> None:
    """An image from scratch has no findings and no distribution, which `confirm` refuses."""
    changes: dict[str, Any] = {
        "trivy": {"Metadata": {"ImageID": "sha256:" + "c" * 64}, "Results": None},
        "grype": {"matches": [], "distro": {"name": "", "version": "", "idLike": None}},
    }
    found = scan_of(DOCUMENTS[tool](**changes[tool]))
    assert (found.findings, found.system) == ((), None)


def _trivys(content: dict[str, Any]) -> dict[str, Any]:
    return content["Results"][0]["Vulnerabilities"][0]


def _grypes(content: dict[str, Any]) -> dict[str, Any]:
    return content["matches"][0]["vulnerability"]


def test_every_severity_is_mapped() -> None:
    """Trivy has five severities and Grype has six; Grype writes no value for an unknown severity."""
    for word in ("UNKNOWN", "LOW", "MEDIUM", "HIGH", "CRITICAL"):
        content = by_trivy()
        _trivys(content)["Severity"] = word
        assert Severity[word] in {
            finding.severity for finding in scan_of(content).findings if finding.package == "zlib1g"
        }
    for word in ("Unknown", "Negligible", "Low", "Medium", "High", "Critical", "high", ""):
        content = by_grype()
        _grypes(content)["severity"] = word
        severity = Severity[(word or "unknown").upper()]
        assert severity in {
            finding.severity for finding in scan_of(content).findings if finding.package == "zlib1g"
        }


def test_a_fix_without_a_version_is_a_fix() -> None:
    """Otherwise `--ignore-unfixed` would ignore a vulnerability that has a fix."""
    trivy, grype = by_trivy(), by_grype()
    _trivys(trivy).update(Status="fixed", FixedVersion="")
    _grypes(grype)["fix"] = {"versions": None, "state": "fixed"}

    assert {scan_of(content).findings[0].fixed for content in (trivy, grype)} == {"an unnamed version"}


def test_duplicate_findings_are_merged() -> None:
    """Grype reports the same finding once for each of its searches that matched."""
    content = by_grype()
    content["matches"] += copy.deepcopy(content["matches"])
    assert scan_of(content) == scan_of(by_grype())


def _with(tool: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = DOCUMENTS[tool]()
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "scan.json: line 1: not JSON"),
        (b"all is well", "scan.json: line 1: not JSON"),
        (b"\xff", "scan.json: line 1: not UTF-8"),
        (b'{"matches": [], "matches": []}', "duplicate key 'matches'"),
        (b"[" * 1000, "nested too deep"),
        ([], "neither a Trivy nor a Grype report"),
        ({"bomFormat": "CycloneDX"}, "neither a Trivy nor a Grype report"),
        (by_trivy(SchemaVersion=1), "SchemaVersion: must be 2, not 1"),
        (by_trivy(ArtifactType="filesystem"), "ArtifactType: must be 'container_image', not 'filesystem'"),
        (by_trivy(Metadata={"ImageID": "sha256:0"}), "Metadata.ImageID: 'sha256:0' is not a digest"),
        (
            _with("trivy", lambda content: _trivys(content).update(Severity="BAD")),
            "Results[0].Vulnerabilities[0].Severity: 'BAD' is not valid",
        ),
        (
            _with("trivy", lambda content: _trivys(content).pop("PkgName")),
            "Results[0].Vulnerabilities[0]: the key 'PkgName' is missing",
        ),
        (
            _with("trivy", lambda content: _trivys(content).update(PkgName="zlib\n  CVE-1: nothing")),
            "Results[0].Vulnerabilities[0].PkgName: 'zlib\\n  CVE-1: nothing' is not one line of text",
        ),
        (
            _with("grype", lambda content: _grypes(content)["fix"].update(versions=["1\x1b[2J"])),
            "matches[0].vulnerability.fix.versions[0]: '1\\x1b[2J' is not one line of text",
        ),
        (by_grype(matches=None), "matches: must be a list, not nothing"),
        (by_grype(source={"type": "directory", "target": "/x"}), "source.type: must be 'image'"),
        (by_grype(descriptor={"name": "grope"}), "descriptor.name: must be 'grype', not 'grope'"),
        (
            _with("grype", lambda content: _grypes(content).update(severity="Bad")),
            "matches[0].vulnerability.severity: 'Bad' is not one of unknown, negligible",
        ),
        (
            _with("grype", lambda content: _grypes(content).pop("fix")),
            "matches[0].vulnerability: the key 'fix' is missing",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_invalid_scan_is_refused_with_its_position(content: Any, message: str) -> None:
    assert message in refusal(content)


def test_all_errors_are_reported() -> None:
    content = by_trivy()
    for vulnerability in content["Results"][0]["Vulnerabilities"]:
        del vulnerability["Severity"]
    assert refusal(content).count("the key 'Severity' is missing") == 2


@given(content=st.sampled_from(TOOLS).flatmap(lambda tool: mutated(DOCUMENTS[tool]())))
def test_a_changed_document_is_a_scan_or_an_error(content: Any) -> None:
    """Only the expected exception is raised. jsonschema refuses the same documents as torchkiln's check."""
    with contextlib.suppress(VerificationFailed):
        scan_of(content)
    for tool in TOOLS:
        schema = shipped(tool)
        assert bool(violations(content, schema)) != jsonschema.Draft202012Validator(schema).is_valid(content)


@pytest.mark.parametrize("name", [*TOOLS, "vulnerabilities"])
def test_the_schemas_use_only_keywords_that_our_check_supports(name: str) -> None:
    def keywords(schema: Any, *, named: bool = False) -> set[str]:
        if not isinstance(schema, dict):
            return set()
        own = set() if named else set(schema)
        inner = (keywords(v, named=k in ("properties", "$defs") and not named) for k, v in schema.items())
        return own.union(*inner)

    jsonschema.Draft202012Validator.check_schema(shipped(name))
    assert keywords(shipped(name)) <= KEYWORDS
    assert [violations(DOCUMENTS[tool](), shipped(tool)) for tool in TOOLS] == [[], []]
