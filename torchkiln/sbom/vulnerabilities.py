"""Scan, threshold, allowances → Judgement: what a scanner found, and whether the image may go out with it."""

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
    """How bad; of the two scanners only Grype says negligible."""

    UNKNOWN = 0
    NEGLIGIBLE = 1
    LOW = 2
    MEDIUM = 3
    HIGH = 4
    CRITICAL = 5

    @property
    def word(self) -> str:
        """As it is written everywhere."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class Vulnerability:
    """One known fault of one installed package. `aliases`: other names of the same fault, CVE and GHSA."""

    id: str
    aliases: tuple[str, ...]
    package: str
    installed: str
    fixed: str | None  # the versions that mend it
    severity: Severity
    kind: str  # the scanner's word for the package's kind
    path: str  # where the package is; "" for the system's own

    def __str__(self) -> str:
        mended = f"fixed in {self.fixed}" if self.fixed else "no fix yet"
        return f"{self.severity.word}, {self.package} {self.installed}".rstrip() + f", {mended}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What one run of a scanner told of one image. None: it did not say."""

    tool: Tool
    version: str | None
    database: str | None  # when its knowledge is of
    manifest: Digest | None
    config: Digest | None
    system: str | None  # the distribution that it recognised, "debian 12.9"
    ended: bool  # whether that has no support any more, so that nobody looks for its faults
    hidden: int  # findings that the scanner was told by others to leave out
    findings: tuple[Vulnerability, ...]  # the worst first


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The lowest severity that is refused, and whether a fault counts for which there is no fix."""

    severity: Severity = Severity.HIGH
    unfixed: Literal["count", "ignore"] = "count"

    def meets(self, found: Vulnerability) -> bool:
        """Whether *found* is refused, unless it is allowed."""
        return found.severity >= self.severity and (self.unfixed == "count" or found.fixed is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """One fault that may be for a while, in one package or, where that is None, in all."""

    id: str
    package: str | None
    reason: str
    until: date  # the last day on which it counts
    where: str  # file:line

    def fits(self, found: Vulnerability) -> bool:
        """Whether it speaks of *found*. Names of Python's packages are compared as Python compares them."""
        same = self.package is None or canonicalize_name(self.package) == canonicalize_name(found.package)
        return same and self.id in (found.id, *found.aliases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What a threshold and a list of allowances make of a scan."""

    refused: tuple[Vulnerability, ...]
    allowed: tuple[tuple[Vulnerability, Allowance], ...]
    passed_over: tuple[tuple[Severity, int], ...]  # what the threshold lets pass, the worst first
    expired: tuple[Allowance, ...]
    idle: tuple[Allowance, ...]  # still good, and fits nothing that was found


def judge(scan: Scan, threshold: Threshold, allowances: Sequence[Allowance], *, on: date) -> Judgement:
    """What of *scan* is refused on the day *on*; of several good allowances the first that fits counts."""
    good = [entry for entry in allowances if on <= entry.until]
    refused, allowed = [], []
    for found in filter(threshold.meets, scan.findings):
        by = next((entry for entry in good if entry.fits(found)), None)
        if by is None:
            refused.append(found)
        else:
            allowed.append((found, by))
    passed_over = Counter(found.severity for found in scan.findings if not threshold.meets(found))
    return Judgement(
        refused=tuple(refused),
        allowed=tuple(allowed),
        passed_over=tuple(sorted(passed_over.items(), reverse=True)),
        expired=tuple(entry for entry in allowances if entry.until < on),
        idle=tuple(entry for entry in good if not any(map(entry.fits, scan.findings))),
    )


def confirm(scan: Scan, *, manifest: Digest, config: Digest) -> None:
    """That *scan* tells of this image, and that its scanner saw something.

    :raises VerificationFailed: it tells of another image or of none, or recognised no distribution: then no
        package of the system was looked up, and silence would be read as health.
    """
    if scan.manifest is None and scan.config is None:
        raise VerificationFailed(
            f"{scan.tool}'s scan does not say of which image it is",
            hint="leave --report out, or scan the image in its layout: `docs/scan.md` has the command",
        )
    for what, told, ours in (("manifest", scan.manifest, manifest), ("config", scan.config, config)):
        if told not in (None, ours):
            raise VerificationFailed(
                f"{scan.tool}'s scan is of another image: its {what} is {told}, this image's {ours}",
                hint="scan this image: leave --report out, or make the report anew",
            )
    if scan.system is None:
        raise VerificationFailed(
            f"{scan.tool} recognised no distribution in the image, so it looked up none of its packages",
            hint="the scanner must find /etc/os-release in the image: is it a whole image of ours?",
        )
