"""Decides which of a scanner's findings refuse an image, by a threshold and a list of accepted ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Literal

from packaging.utils import canonicalize_name

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest

Tool = Literal["trivy", "grype"]
TOOLS: tuple[Tool, ...] = ("trivy", "grype")


class Severity(IntEnum):
    """The severity of a vulnerability; only Grype uses negligible."""

    UNKNOWN = 0
    NEGLIGIBLE = 1
    LOW = 2
    MEDIUM = 3
    HIGH = 4
    CRITICAL = 5

    @property
    def word(self) -> str:
        """Its name in lower case."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class Vulnerability:
    """A known vulnerability of an installed package. `aliases`: its other ids, CVE and GHSA."""

    id: str
    aliases: tuple[str, ...]
    package: str
    installed: str
    fixed: str | None  # the versions that fix it
    severity: Severity
    kind: str  # the scanner's name of the package's type
    path: str  # where the package is; "" for OS packages

    def __str__(self) -> str:
        fix = f"fixed in {self.fixed}" if self.fixed else "no fix yet"
        return f"{self.severity.word}, {self.package} {self.installed}".rstrip() + f", {fix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """The result of a scanner for an image. None: not in the report."""

    tool: Tool
    version: str | None
    database: str | None  # the date of the vulnerability database
    manifest: Digest | None
    config: Digest | None
    system: str | None  # the detected distribution, "debian 12.9"
    ended: bool  # whether the distribution has reached its end of life
    hidden: int  # findings that the scanner's own settings suppress
    findings: tuple[Vulnerability, ...]  # highest severity first


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The lowest severity that is refused, and whether vulnerabilities without a fix are refused, too."""

    severity: Severity = Severity.HIGH
    unfixed: Literal["count", "ignore"] = "count"

    def meets(self, found: Vulnerability) -> bool:
        """Whether *found* is refused, unless it is allowed."""
        return found.severity >= self.severity and (self.unfixed == "count" or found.fixed is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedVulnerability:
    """A vulnerability that is accepted for some time, in one package or (None) in all."""

    id: str
    package: str | None
    reason: str
    until: date  # the last day on which it is accepted
    where: str  # file:line

    def fits(self, found: Vulnerability) -> bool:
        """Whether it applies to *found*. Package names are compared in their normalized form."""
        same = self.package is None or canonicalize_name(self.package) == canonicalize_name(found.package)
        return same and self.id in (found.id, *found.aliases)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanVerdict:
    """The findings of a scan, divided by a threshold and allowances; and the allowances without effect."""

    refused: tuple[Vulnerability, ...]
    allowed: tuple[tuple[Vulnerability, AllowedVulnerability], ...]
    passed_over: tuple[
        tuple[Severity, int], ...
    ]  # number of findings that the threshold does not refuse, highest severity first

    expired: tuple[AllowedVulnerability, ...]
    idle: tuple[AllowedVulnerability, ...]  # not expired, but no finding matches


def judge(
    scan: Scan, threshold: Threshold, allowances: Sequence[AllowedVulnerability], *, on: date
) -> ScanVerdict:
    """Divide the findings of *scan* on the date *on*; the first valid entry that fits a finding allows it."""
    valid = [entry for entry in allowances if on <= entry.until]
    refused, allowed = [], []
    for found in filter(threshold.meets, scan.findings):
        match = next((entry for entry in valid if entry.fits(found)), None)
        if match is None:
            refused.append(found)
        else:
            allowed.append((found, match))
    passed_over = Counter(found.severity for found in scan.findings if not threshold.meets(found))
    return ScanVerdict(
        refused=tuple(refused),
        allowed=tuple(allowed),
        passed_over=tuple(sorted(passed_over.items(), reverse=True)),
        expired=tuple(entry for entry in allowances if entry.until < on),
        idle=tuple(entry for entry in valid if not any(map(entry.fits, scan.findings))),
    )


def confirm(scan: Scan, *, manifest: Digest, config: Digest) -> None:
    """Check that *scan* is of this image, and that the scanner detected its distribution.

    :raises VerificationFailed: the scan names another image or none, or no distribution was detected: then
        the scanner checked no OS packages, and an empty result means nothing.
    """
    if scan.manifest is None and scan.config is None:
        raise VerificationFailed(
            f"the {scan.tool} report names no image",
            hint="omit --report, or scan the image in its layout as docs/scan.md shows",
        )
    for what, scanned, expected in (("manifest", scan.manifest, manifest), ("config", scan.config, config)):
        if scanned not in (None, expected):
            raise VerificationFailed(
                f"the {scan.tool} report is of another image: its {what} is {scanned}, not {expected}",
                hint="omit --report, or scan this image again",
            )
    if scan.system is None:
        raise VerificationFailed(
            f"{scan.tool} detected no distribution in the image, so it checked no OS packages",
            hint="the scanner needs /etc/os-release in the image; scan a complete image",
        )
