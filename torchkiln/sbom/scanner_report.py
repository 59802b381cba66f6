"""Trivy's or Grype's JSON → Scan. Both are known by their own marks; of each the part is read that we judge.

Trivy: the report of `trivy image --format json`, SchemaVersion 2 (pkg/types/report.go in its repository).
Grype: the document of `grype -o json` (grype/presenter/models), which has no version of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.sbom.vulnerabilities import Scan, Severity, Tool, Vulnerability
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of

LIMIT = 64 << 20  # bytes; with every package listed an image of ours has some megabytes
_UNNAMED = "a version that is not told"  # a fix is there: it must count as one
_HINT = "give what `trivy image --format json` or `grype -o json` wrote, whole and unchanged"


def read(data: bytes, *, where: str) -> Scan:
    """The scan in *data*.

    :param where: whose words these are, for messages.
    :raises VerificationFailed: it is neither scanner's JSON of an image, or has faults: each with its place.
    """
    try:
        told = json_of(data)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    tool, form = _recognise(told, where)
    if wrong := sentences(told, shipped(tool), where):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    return form(told)


def complete(scan: Scan, data: bytes) -> Scan:
    """*scan* with what Trivy's report does not say and `trivy version --format json` does, where it is told.

    It is for people, and nothing is decided by it: what cannot be read is left open.
    """
    try:
        told = json_of(data)
    except ValueError:
        return scan
    told = told if isinstance(told, dict) else {}
    known = told.get("VulnerabilityDB")
    built = known.get("UpdatedAt") if isinstance(known, dict) else None
    version = told.get("Version")
    return replace(
        scan,
        version=scan.version or (version if isinstance(version, str) else None),
        database=built if isinstance(built, str) else None,
    )


def _recognise(told: Any, where: str) -> tuple[Tool, Callable[[dict[str, Any]], Scan]]:
    if isinstance(told, dict):
        if "SchemaVersion" in told and "ArtifactType" in told:
            return "trivy", _trivy
        if "matches" in told and "descriptor" in told:
            return "grype", _grype
    raise VerificationFailed(f"{where}: neither Trivy's report nor Grype's", hint=_HINT)


def _trivy(told: dict[str, Any]) -> Scan:
    about = told.get("Metadata") or {}
    system = about.get("OS") or {}
    results = told.get("Results") or []
    return Scan(
        tool="trivy",
        version=(told.get("Trivy") or {}).get("Version"),
        database=None,
        manifest=None,  # it may be in RepoDigests, of whatever repository; the config is in every report
        config=_digest(about.get("ImageID")),
        system=_words(system.get("Family"), system.get("Name")),
        ended=system.get("EOSL", False),
        hidden=sum(len(result.get("ExperimentalModifiedFindings") or ()) for result in results),
        findings=_ordered(_trivy_findings(results)),
    )


def _trivy_findings(results: list[dict[str, Any]]) -> Iterator[Vulnerability]:
    for result in results:
        for one in result.get("Vulnerabilities") or ():
            fixed = one.get("FixedVersion") or (_UNNAMED if one.get("Status") == "fixed" else None)
            yield Vulnerability(
                id=one["VulnerabilityID"],
                aliases=(),
                package=one["PkgName"],
                installed=one.get("InstalledVersion", ""),
                fixed=fixed,
                severity=Severity[one["Severity"]],
                kind=result.get("Type", ""),
                path=one.get("PkgPath", ""),
            )


def _grype(told: dict[str, Any]) -> Scan:
    about, target = told["descriptor"], told["source"]["target"]
    known = about.get("db") or {}
    return Scan(
        tool="grype",
        version=about.get("version"),
        database=(known.get("status") or known).get("built"),
        manifest=_digest(target.get("manifestDigest")),
        config=_digest(target.get("imageID")),
        system=_words(told["distro"].get("name"), told["distro"].get("version")),
        ended=any(
            alert["type"] == "distro-eol"
            for package in told.get("alertsByPackage") or ()
            for alert in package["alerts"]
        ),
        hidden=len(told.get("ignoredMatches") or ()),
        findings=_ordered(_grype_findings(told["matches"])),
    )


def _grype_findings(matches: list[dict[str, Any]]) -> Iterator[Vulnerability]:
    for match in matches:
        fault, package = match["vulnerability"], match["artifact"]
        fix = fault.get("fix") or {}
        fixed = ", ".join(fix.get("versions") or ()) or (_UNNAMED if fix.get("state") == "fixed" else None)
        places = [place["path"] for place in package.get("locations") or ()]
        related = {one["id"] for one in match.get("relatedVulnerabilities") or ()}
        yield Vulnerability(
            id=fault["id"],
            aliases=tuple(sorted(related - {fault["id"]})),
            package=package["name"],
            installed=package.get("version", ""),
            fixed=fixed,
            severity=Severity[(fault.get("severity") or "unknown").upper()],
            kind=package["type"],
            path=places[0].lstrip("/") if places and package["type"] != "deb" else "",
        )


def _ordered(found: Iterable[Vulnerability]) -> tuple[Vulnerability, ...]:
    """Each once: Grype tells a package that two searches found twice."""
    return tuple(
        sorted(set(found), key=lambda one: (-one.severity, one.package, one.id, one.installed, one.path))
    )


def _words(*parts: str | None) -> str | None:
    return " ".join(part for part in parts if part) or None


def _digest(told: str | None) -> Digest | None:
    return Digest(told) if told else None
