"""Trivy's and Grype's JSON: both read alike, and what is neither is refused with its place."""

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


def scan_of(told: Any) -> Scan:
    return read(json.dumps(told).encode(), where="scan.json")


def refusal(told: Any) -> str:
    data = told if isinstance(told, bytes) else json.dumps(told).encode()
    with pytest.raises(VerificationFailed) as refused:
        read(data, where="scan.json")
    assert refused.value.hint
    return refused.value.message


@pytest.mark.parametrize("tool", TOOLS)
def test_the_faults_are_those_of_the_image(tool: str) -> None:
    """The worst first, whoever tells them; Grype has GitHub's names for those in wheels."""
    found = scan_of(DOCUMENTS[tool]()).findings

    assert [(one.package, one.installed, one.fixed, one.severity.word) for one in found] == [
        (package, installed, fixed, severity) for package, _, installed, fixed, severity, _ in FAULTS
    ]
    assert all(cve in (one.id, *one.aliases) for one, (_, cve, *_) in zip(found, FAULTS, strict=True))
    assert all(one.id not in one.aliases for one in found)


def test_both_tools_agree_on_the_same_image() -> None:
    """In all that is judged and in the places; they differ in names and in words for kinds."""
    trivy, grype = scan_of(by_trivy()), scan_of(by_grype())

    assert trivy.config == grype.config
    for one, other in zip(trivy.findings, grype.findings, strict=True):
        assert one.id in (other.id, *other.aliases)
        assert replace(one, id="", aliases=(), kind="") == replace(other, id="", aliases=(), kind="")


def test_what_trivy_tells_of_itself_and_the_image() -> None:
    found = scan_of(by_trivy())
    newer = scan_of(by_trivy(Trivy={"Version": "0.72.0"}))

    assert (found.tool, found.version, newer.version, found.database) == ("trivy", None, "0.72.0", None)
    assert (found.system, found.ended, found.hidden) == ("debian 12.9", False, 0)
    assert (found.manifest, found.config) == (None, "sha256:" + "c" * 64)


def test_what_grype_tells_of_itself_and_the_image() -> None:
    """Grype up to 0.87 tells the day of its database at another place."""
    found = scan_of(by_grype())
    older = scan_of(
        by_grype(descriptor={"name": "grype", "version": "0.66.0", "db": {"built": "2023-09-01T01:26:55Z"}})
    )

    assert (found.tool, found.version, found.database) == ("grype", "0.115.0", "2026-11-22T06:00:00Z")
    assert (older.version, older.database) == ("0.66.0", "2023-09-01T01:26:55Z")
    assert (found.system, found.ended, found.hidden) == ("debian 12", False, 0)
    assert (found.manifest, found.config) == ("sha256:" + "d" * 64, "sha256:" + "c" * 64)


@pytest.mark.parametrize(
    ("told", "version", "database"),
    [
        (b'{"Version": "0.59.1", "VulnerabilityDB": {"UpdatedAt": "2026-11-22"}}', "0.59.1", "2026-11-22"),
        (b'{"Version": "0.59.1"}', "0.59.1", None),
        (b'{"Version": 1, "VulnerabilityDB": {"UpdatedAt": 2}}', None, None),
        (b'{"VulnerabilityDB": []}', None, None),
        (b"[]", None, None),
        (b"Version: 0.59.1", None, None),
    ],
)
def test_trivys_version_completes_its_scan(told: bytes, version: str | None, database: str | None) -> None:
    """Where it can be read; nothing hangs on it."""
    found = complete(scan_of(by_trivy()), told)
    assert (found.version, found.database) == (version, database)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_system_without_support_is_told(tool: str) -> None:
    changes: dict[str, Any] = {
        "trivy": {"Metadata": {"OS": {"Family": "debian", "Name": "10.13", "EOSL": True}}},
        "grype": {"alertsByPackage": [{"package": {}, "alerts": [{"type": "distro-eol", "message": "old"}]}]},
    }
    assert scan_of(DOCUMENTS[tool](**changes[tool])).ended


@pytest.mark.parametrize("tool", TOOLS)
def test_what_the_tool_left_out_is_counted(tool: str) -> None:
    changes: dict[str, Any] = {
        "trivy": {"Results": [{"Type": "debian", "ExperimentalModifiedFindings": [{}, {}]}]},
        "grype": {"ignoredMatches": [{}, {}]},
    }
    assert scan_of(DOCUMENTS[tool](**changes[tool])).hidden == 2


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_found_and_nothing_recognised(tool: str) -> None:
    """An image from scratch: no finding, and no distribution, which `confirm` refuses."""
    changes: dict[str, Any] = {
        "trivy": {"Metadata": {"ImageID": "sha256:" + "c" * 64}, "Results": None},
        "grype": {"matches": [], "distro": {"name": "", "version": "", "idLike": None}},
    }
    found = scan_of(DOCUMENTS[tool](**changes[tool]))
    assert (found.findings, found.system) == ((), None)


def _trivys(told: dict[str, Any]) -> dict[str, Any]:
    return told["Results"][0]["Vulnerabilities"][0]


def _grypes(told: dict[str, Any]) -> dict[str, Any]:
    return told["matches"][0]["vulnerability"]


def test_every_severity_has_its_place() -> None:
    """Trivy knows five, Grype six, and writes none for unknown."""
    for word in ("UNKNOWN", "LOW", "MEDIUM", "HIGH", "CRITICAL"):
        told = by_trivy()
        _trivys(told)["Severity"] = word
        assert Severity[word] in {one.severity for one in scan_of(told).findings if one.package == "zlib1g"}
    for word in ("Unknown", "Negligible", "Low", "Medium", "High", "Critical", "high", ""):
        told = by_grype()
        _grypes(told)["severity"] = word
        severity = Severity[(word or "unknown").upper()]
        assert severity in {one.severity for one in scan_of(told).findings if one.package == "zlib1g"}


def test_a_fix_without_a_version_is_a_fix() -> None:
    """Else `--ignore-unfixed` would let it pass."""
    trivy, grype = by_trivy(), by_grype()
    _trivys(trivy).update(Status="fixed", FixedVersion="")
    _grypes(grype)["fix"] = {"versions": None, "state": "fixed"}

    assert {scan_of(told).findings[0].fixed for told in (trivy, grype)} == {"an unnamed version"}


def test_a_finding_is_told_once() -> None:
    """Grype gives one for each search that hit."""
    told = by_grype()
    told["matches"] += copy.deepcopy(told["matches"])
    assert scan_of(told) == scan_of(by_grype())


def _with(tool: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    told = DOCUMENTS[tool]()
    change(told)
    return told


@pytest.mark.parametrize(
    ("told", "says"),
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
            _with("trivy", lambda told: _trivys(told).update(Severity="BAD")),
            "Results[0].Vulnerabilities[0].Severity: 'BAD' is not valid",
        ),
        (
            _with("trivy", lambda told: _trivys(told).pop("PkgName")),
            "Results[0].Vulnerabilities[0]: the key 'PkgName' is missing",
        ),
        (
            _with("trivy", lambda told: _trivys(told).update(PkgName="zlib\n  CVE-1: nothing")),
            "Results[0].Vulnerabilities[0].PkgName: 'zlib\\n  CVE-1: nothing' is not one line of text",
        ),
        (
            _with("grype", lambda told: _grypes(told)["fix"].update(versions=["1\x1b[2J"])),
            "matches[0].vulnerability.fix.versions[0]: '1\\x1b[2J' is not one line of text",
        ),
        (by_grype(matches=None), "matches: must be a list, not nothing"),
        (by_grype(source={"type": "directory", "target": "/x"}), "source.type: must be 'image'"),
        (by_grype(descriptor={"name": "grope"}), "descriptor.name: must be 'grype', not 'grope'"),
        (
            _with("grype", lambda told: _grypes(told).update(severity="Bad")),
            "matches[0].vulnerability.severity: 'Bad' is not one of unknown, negligible",
        ),
        (
            _with("grype", lambda told: _grypes(told).pop("fix")),
            "matches[0].vulnerability: the key 'fix' is missing",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_scan_is_refused_with_its_place(told: Any, says: str) -> None:
    assert says in refusal(told)


def test_all_faults_are_told() -> None:
    told = by_trivy()
    for one in told["Results"][0]["Vulnerabilities"]:
        del one["Severity"]
    assert refusal(told).count("the key 'Severity' is missing") == 2


@given(told=st.sampled_from(TOOLS).flatmap(lambda tool: mutated(DOCUMENTS[tool]())))
def test_a_spoiled_document_is_a_scan_or_a_told_refusal(told: Any) -> None:
    """Never another exception; and our check of the form refuses what jsonschema's does."""
    with contextlib.suppress(VerificationFailed):
        scan_of(told)
    for tool in TOOLS:
        schema = shipped(tool)
        assert bool(violations(told, schema)) != jsonschema.Draft202012Validator(schema).is_valid(told)


@pytest.mark.parametrize("name", [*TOOLS, "vulnerabilities"])
def test_the_schemas_say_only_what_our_check_understands(name: str) -> None:
    def keywords(schema: Any, *, named: bool = False) -> set[str]:
        if not isinstance(schema, dict):
            return set()
        own = set() if named else set(schema)
        inner = (keywords(v, named=k in ("properties", "$defs") and not named) for k, v in schema.items())
        return own.union(*inner)

    jsonschema.Draft202012Validator.check_schema(shipped(name))
    assert keywords(shipped(name)) <= KEYWORDS
    assert [violations(DOCUMENTS[tool](), shipped(tool)) for tool in TOOLS] == [[], []]
