"""Reads the JSON reports of Trivy and Grype.

Trivy: the report of `trivy image --format json`, SchemaVersion 2 (pkg/types/report.go in its repository).
Grype: the document of `grype -o json` (grype/presenter/models), whose format has no version.
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

LIMIT = 64 << 20  # bytes; a report with all packages has some megabytes
_UNNAMED = "an unnamed version"  # the report says that there is a fix, but not in which version
_HINT = "pass the unchanged output of `trivy image --format json` or `grype -o json`"


def read(data: bytes, *, where: str) -> Scan:
    """Read the report *data*.

    :param where: its name in messages.
    :raises VerificationFailed: it is not a report of either scanner on an image, or is invalid.
    """
    try:
        report = json_of(data)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    tool, reader = _recognise(report, where)
    if faults := sentences(report, shipped(tool), where):
        raise VerificationFailed("\n".join(faults), hint=_HINT)
    return reader(report)


def complete(scan: Scan, data: bytes) -> Scan:
    """*scan* with the versions in *data*, the output of `trivy version --format json`.

    They are only displayed, so invalid data is ignored.
    """
    try:
        versions = json_of(data)
    except ValueError:
        return scan
    versions = versions if isinstance(versions, dict) else {}
    database = versions.get("VulnerabilityDB")
    built = database.get("UpdatedAt") if isinstance(database, dict) else None
    version = versions.get("Version")
    return replace(
        scan,
        version=scan.version or (version if isinstance(version, str) else None),
        database=built if isinstance(built, str) else None,
    )


def _recognise(report: Any, where: str) -> tuple[Tool, Callable[[dict[str, Any]], Scan]]:
    if isinstance(report, dict):
        if "SchemaVersion" in report and "ArtifactType" in report:
            return "trivy", _trivy
        if "matches" in report and "descriptor" in report:
            return "grype", _grype
    raise VerificationFailed(f"{where}: neither a Trivy nor a Grype report", hint=_HINT)


def _trivy(report: dict[str, Any]) -> Scan:
    metadata = report.get("Metadata") or {}
    system = metadata.get("OS") or {}
    results = report.get("Results") or []
    return Scan(
        tool="trivy",
        version=(report.get("Trivy") or {}).get("Version"),
        database=None,
        manifest=None,  # RepoDigests can name any repository; ImageID is in every report
        config=_digest(metadata.get("ImageID")),
        system=_joined(system.get("Family"), system.get("Name")),
        ended=system.get("EOSL", False),
        hidden=sum(len(result.get("ExperimentalModifiedFindings") or ()) for result in results),
        findings=_ordered(_trivy_findings(results)),
    )


def _trivy_findings(results: list[dict[str, Any]]) -> Iterator[Vulnerability]:
    for result in results:
        for found in result.get("Vulnerabilities") or ():
            fixed = found.get("FixedVersion") or (_UNNAMED if found.get("Status") == "fixed" else None)
            yield Vulnerability(
                id=found["VulnerabilityID"],
                aliases=(),
                package=found["PkgName"],
                installed=found.get("InstalledVersion", ""),
                fixed=fixed,
                severity=Severity[found["Severity"]],
                kind=result.get("Type", ""),
                path=found.get("PkgPath", ""),
            )


def _grype(report: dict[str, Any]) -> Scan:
    descriptor, target = report["descriptor"], report["source"]["target"]
    database = descriptor.get("db") or {}
    return Scan(
        tool="grype",
        version=descriptor.get("version"),
        database=(database.get("status") or database).get("built"),
        manifest=_digest(target.get("manifestDigest")),
        config=_digest(target.get("imageID")),
        system=_joined(report["distro"].get("name"), report["distro"].get("version")),
        ended=any(
            alert["type"] == "distro-eol"
            for package in report.get("alertsByPackage") or ()
            for alert in package["alerts"]
        ),
        hidden=len(report.get("ignoredMatches") or ()),
        findings=_ordered(_grype_findings(report["matches"])),
    )


def _grype_findings(matches: list[dict[str, Any]]) -> Iterator[Vulnerability]:
    for match in matches:
        found, package = match["vulnerability"], match["artifact"]
        fix = found.get("fix") or {}
        fixed = ", ".join(fix.get("versions") or ()) or (_UNNAMED if fix.get("state") == "fixed" else None)
        paths = [location["path"] for location in package.get("locations") or ()]
        related = {other["id"] for other in match.get("relatedVulnerabilities") or ()}
        yield Vulnerability(
            id=found["id"],
            aliases=tuple(sorted(related - {found["id"]})),
            package=package["name"],
            installed=package.get("version", ""),
            fixed=fixed,
            severity=Severity[(found.get("severity") or "unknown").upper()],
            kind=package["type"],
            path=paths[0].lstrip("/") if paths and package["type"] != "deb" else "",
        )


def _ordered(found: Iterable[Vulnerability]) -> tuple[Vulnerability, ...]:
    """Sorted and without duplicates, which Grype reports if two of its matchers find a package."""

    def key(found: Vulnerability) -> tuple[int, str, str, str, str]:
        return -found.severity, found.package, found.id, found.installed, found.path

    return tuple(sorted(set(found), key=key))


def _joined(*parts: str | None) -> str | None:
    return " ".join(part for part in parts if part) or None


def _digest(text: str | None) -> Digest | None:
    return Digest(text) if text else None
