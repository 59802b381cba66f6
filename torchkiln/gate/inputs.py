"""Reads reports and keys for the gate, and checks images of a layout against the policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest.roles import KeyInRole, keys_for
from torchkiln.build.image_lock import kept_lock
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import GateResult, judge
from torchkiln.gate.gpu_stack import EarlierImage, earlier_images
from torchkiln.gate.hints import GivenOptions
from torchkiln.gate.kept_reports import locks_in
from torchkiln.gate.project.judge import judge_project
from torchkiln.gate.project.read import ProjectImage, project_image, read_evidence
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import Finding, SignedReport
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.smoke import attestation, hosts
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.project.account import is_project
from torchkiln.smoke.project.suite import project_suite
from torchkiln.smoke.session import image_and_lock
from torchkiln.smoke.suite import Suite
from torchkiln.smoke.verdict import host_fault, verdict


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
        """The trusted keys."""
        return (*self.keys, *self.named)

    def demand_keys(self, policy_file: Path) -> None:
        """:raises ConfigError: the policy, from *policy_file*, requires signatures, and no key is trusted."""
        if self.policy.signed and not keys_for("laboratory", self.trusted):
            raise ConfigError(
                f"the policy in {policy_file} requires signed reports, but no trusted key is given",
                hint="name the signer's public key: --trust PUBLIC.pem, "
                "or `keys` in a file that --policy names",
            )

    def judge(self, image: ImageOnDisk, locked: LockedCell) -> GateResult:
        """The gate's result for *image*, now.

        :raises ConfigError: a given file is not a report.
        :raises VerificationFailed: a signature is invalid.
        """
        policy = self.policy.of(locked.resolution)
        return judge(
            self._signed_reports(image.manifest),
            replace(policy, signed=policy.signed or bool(keys_for("laboratory", self.named))),
            locked,
            self.suite,
            image=image.manifest,
            earlier=self._earlier(image.manifest, locked),
            nonce=self.nonce,
            at=datetime.now(timezone.utc),
        )

    def judge_image(self, ref: str | None, layout: Path, images: Path) -> GateResult:
        """The gate's result for the image *ref* of *layout*, of a cell or a project; locks are in *images*.

        :raises ConfigError: there is no such image, or a given file is not a report.
        :raises Stale: there is no lock of it.
        :raises VerificationFailed: a signature is invalid, or a layer is damaged.
        """
        image = open_layout(layout).image(ref)
        if is_project(image):
            return self.judge_project(project_image(image, layout, images, self.runs.store))
        found, _, locked = image_and_lock(ref, layout, images, self.runs.store)
        return self.judge(found, locked)

    def judge_project(self, project: ProjectImage) -> GateResult:
        """The gate's result for the image of *project*, now: by its reports, and those of the parent image.

        :raises ConfigError: a given file is not a report.
        :raises VerificationFailed: a signature is invalid, or a layer is damaged.
        """
        evidence = read_evidence(project, self.runs.store)
        locked = project.locked
        image, at = project.image.manifest, datetime.now(timezone.utc)
        policy = self.policy.of(locked.resolution)
        policy = replace(policy, signed=policy.signed or bool(keys_for("laboratory", self.named)))
        below = project.below.manifest
        # A report of any other image is passed as one of the project's, so that it is refused.
        of_below = [found for found in self._signed_reports(below) if found.report.image == below]
        own = [found for found in self._signed_reports(image) if found.report.image != below]
        return judge_project(
            evidence,
            judge(
                of_below,
                policy,
                locked,
                self.suite,
                image=below,
                earlier=self._earlier(below, locked),
                at=at,
            ),
            own,
            policy,
            project_suite(),
            nonce=self.nonce,
            at=at,
        )

    def _signed_reports(self, image: Digest) -> list[SignedReport]:
        own = [signed_report for signed_report in self.runs.all() if signed_report.report.image == image]
        if not self.given:
            return [signed_report for signed_report in own if not _is_superseded(signed_report, own)]
        made_here = [signed_report.report for signed_report in own]
        return [
            replace(signed_report, own=signed_report.report in made_here)
            for path in self.given
            for signed_report in self._read(path, image)
        ]

    def _earlier(self, image: Digest, locked: LockedCell) -> tuple[EarlierImage, ...]:
        """Images with the GPU stack of *locked*: their reports and locks are given, or of this machine."""
        locks = {digest: found for folder in self.given for digest, found in locks_in(folder).items()}
        others = (signed for signed in self._all_reports() if signed.report.image != image)
        return tuple(
            earlier_images(
                others, locked, lambda digest: locks.get(digest) or kept_lock(digest, self.runs.store)
            )
        )

    def _all_reports(self) -> Iterator[SignedReport]:
        """Reports of any image; of the given ones, those that can be read and have a valid signature."""
        own = self.runs.all()
        yield from () if self.given else own
        made_here = [signed_report.report for signed_report in own]
        keys = keys_for("laboratory", self.trusted)
        for path in self.given:
            for file in attestation.files(path) if path.is_dir() else [path]:
                with suppress(KilnError):
                    found = attestation.read(file, keys)
                    yield replace(found, own=found.report in made_here)

    def _read(self, path: Path, image: Digest) -> Iterator[SignedReport]:
        """The report in the file *path*; if *path* is a folder, the reports of *image* in it."""
        keys = keys_for("laboratory", self.trusted)
        if not path.is_dir():
            yield attestation.read(path, keys)
            return
        for file in attestation.files(path):
            try:
                filed = attestation.filed(file)
                image_of_report = filed.signed_report().report.image
            except KilnError:  # not every file in a folder is a report
                continue
            if image_of_report == image:
                yield filed.signed_report(keys)


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
