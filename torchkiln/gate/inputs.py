"""Reads reports and keys for the gate, and checks images of cells against the policy.

In a folder of reports such as docs/proofs, `NAME.pub.pem` is the key of the reports `NAME*`. The owner of the
folder chooses the keys, so a valid signature shows that a report was not changed after it was signed, but not
who made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from torchkiln.attest import dsse
from torchkiln.attest.keys import KeyInRole, keys_for
from torchkiln.engine.image_lock import kept_lock
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import GateResult, judge
from torchkiln.gate.gpu_stack import EarlierImage, earlier_images
from torchkiln.gate.hints import GivenOptions
from torchkiln.locks.file import LIMIT, from_json, lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import Finding, SignedReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke import attestation, hosts
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.suite import Suite
from torchkiln.smoke.verdict import host_fault, verdict
from torchkiln.util.strict_json import read_file, read_given


@dataclass(frozen=True, kw_only=True, slots=True)
class GateInputs:
    """The inputs of the gate, read once for all images."""

    policy: Policy
    suite: Suite
    runs: KeptRuns  # the kept runs of this machine
    keys: tuple[KeyInRole, ...] = ()  # the keys in the policy
    named: tuple[KeyInRole, ...] = ()  # of --trust; if one is of a laboratory, reports must be signed
    given: tuple[Path, ...] = ()  # reports, and folders of them; empty: this machine's own runs
    nonce: str | None = None
    options: GivenOptions = field(default_factory=GivenOptions)  # of the command, for the hints

    @property
    def trusted(self) -> tuple[KeyInRole, ...]:
        return (*self.keys, *self.named)

    def demand_keys(self, policy_file: Path) -> None:
        """:raises ConfigError: the policy, from *policy_file*, requires signatures, and no key is trusted."""
        if self.policy.signed and not keys_for("laboratory", self.trusted):
            raise ConfigError(
                f"the policy in {policy_file} requires signed reports, but no trusted key is given",
                hint="name the signer's public key: --trust laboratory=PUBLIC.pem, "
                "or `keys` in a file that --policy names",
            )

    def judge(self, image: ImageOnDisk, locked: LockedCell, images: Path) -> GateResult:
        """The gate's result for *image*, now; *images* may have the lock of an earlier image.

        :raises ConfigError: a given file is not a report.
        :raises VerificationFailed: a signature is invalid.
        """
        reports, earlier = self.reports_for(image.manifest, locked, images)
        return judge(
            reports,
            self.policy_for(locked),
            locked,
            self.suite,
            image=image.manifest,
            earlier=earlier,
            nonce=self.nonce,
            at=datetime.now(timezone.utc),
        )

    def policy_for(self, locked: LockedCell) -> Policy:
        policy = self.policy.of(locked.resolution)
        return replace(policy, signed=policy.signed or bool(keys_for("laboratory", self.named)))

    def reports_for(
        self, image: Digest, locked: LockedCell, images: Path
    ) -> tuple[list[SignedReport], list[EarlierImage]]:
        """The reports to judge *image* by, and the earlier images with the GPU stack of *locked*.

        Each file is read once. A given file is judged even if it is of another image, so that it is refused.
        """
        here = self.runs.all()
        own = [signed_report for signed_report in here if signed_report.report.image == image]
        judged = [signed_report for signed_report in own if not _is_superseded(signed_report, own)]
        others = [signed_report for signed_report in here if signed_report.report.image != image]
        if self.given:
            judged, others = [], []
            made_here = [signed_report.report for signed_report in here]
            for found in self._given(image):
                signed_report = replace(found.signed, own=found.signed.report in made_here)
                if found.named or signed_report.report.image == image:
                    judged.append(signed_report)
                if signed_report.report.image != image:
                    others.append(signed_report)
        beside = {path if path.is_dir() else path.parent for path in self.given}
        locks = {digest: kept for folder in beside for digest, kept in locks_in(folder).items()}
        with suppress(KilnError):  # the present image has another lock if its base is not the committed one
            committed = load_locked(images, tag_of(locked.resolution))
            locks.setdefault(lock_digest(committed), committed)
        earlier = earlier_images(
            others, locked, lambda digest: locks.get(digest) or kept_lock(digest, self.runs.store)
        )
        return judged, list(earlier)

    def _given(self, image: Digest) -> Iterator[_Given]:
        """The given reports. Reports of images other than *image* in a folder need not be valid."""
        keys = keys_for("laboratory", self.trusted)
        for path in self.given:
            if not path.is_dir():
                yield _Given(signed=attestation.read(path, keys), named=True)
                continue
            for file in attestation.files(path):
                try:
                    filed = attestation.filed(file)
                    of_image = filed.signed_report().report.image == image
                except KilnError:  # not every file in a folder is a report
                    continue
                with nullcontext() if of_image else suppress(KilnError):
                    yield _Given(signed=filed.signed_report(keys), named=False)


class _Given(NamedTuple):
    """A report of `--report`."""

    signed: SignedReport
    named: bool  # as a file, not by its folder


def _is_superseded(signed_report: SignedReport, own: Sequence[SignedReport]) -> bool:
    """Whether *signed_report* is inconclusive, and a later run has a result for each check that it passed.

    The later run proves the same, and the gate could refuse this report, for example for its age.
    """
    report = signed_report.report
    if report.verdict != "inconclusive" or verdict(report.findings) != "inconclusive":
        return False
    passed = {finding.id for finding in report.findings if finding.outcome == "passed"}
    return any(
        passed <= {finding.id for finding in later.findings if _is_conclusive(finding)}
        and (later.when or "") > (report.when or "")
        and hosts.capability(json.loads(later.host)) == hosts.capability(json.loads(report.host))
        for later in (other.report for other in own)
    )


def _is_conclusive(finding: Finding) -> bool:
    return finding.outcome == "passed" or (finding.outcome == "failed" and host_fault(finding) is None)


_KEY = ".pub.pem"
_KEY_LIMIT = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptReport:
    """A report; *files* has the names and bytes of its file, and of the key that verified it."""

    signed: SignedReport
    files: tuple[tuple[str, bytes], ...]


def kept_reports(folder: Path) -> tuple[KeptReport, ...]:
    """The reports on images of cells in *folder*, sorted; a signed report is verified if its key is there.

    :raises ConfigError: the folder or a key cannot be read.
    :raises VerificationFailed: a signature is invalid.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name a folder of smoke reports")
    keys = {
        path.name.removesuffix(_KEY): read_given(path, _KEY_LIMIT, hint="remove it, or make it readable")
        for path in sorted(folder.glob(f"*{_KEY}"))
    }
    trusted = {name: dsse.public_key(pem, where=f"{name}{_KEY}") for name, pem in keys.items()}
    found = []
    for path in attestation.files(folder):
        try:
            filed = attestation.filed(path)
            report = filed.signed_report().report
        except KilnError:  # not every file in a folder is a report
            continue
        if report.image is None or report.project:
            continue
        names = _beginning(path.name, keys)
        signed = filed.signed_report([trusted[name] for name in names])
        own = [(f"{name}{_KEY}", keys[name]) for name in names if signed.signers]
        found.append(KeptReport(signed=signed, files=((path.name, filed.data), *own)))
    return tuple(found)


def reports_in(folder: Path) -> tuple[SignedReport, ...]:
    """The reports of `kept_reports`, without the bytes."""
    return tuple(kept.signed for kept in kept_reports(folder))


def _beginning(name: str, prefixes: Iterable[str]) -> list[str]:
    """The longest of *prefixes* with which *name* begins, if there is one."""
    matches = [prefix for prefix in prefixes if name.startswith(prefix)]
    return [max(matches, key=len)] if matches else []


def locks_in(folder: Path) -> dict[Digest, LockedCell]:
    """The locks of earlier images by digest: `NAME.lock.json` beside their reports, without damaged ones."""
    found = {}
    for path in sorted(folder.glob("*.lock.json")):
        with suppress(KilnError, OSError):
            locked = from_json(read_file(path, LIMIT))
            found[lock_digest(locked)] = locked
    return found
