"""Reads reports and keys for the gate, and checks images of a layout against the policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest.roles import KeyInRole, keys_for
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import GateResult, judge
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke import attestation
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.suite import Suite


@dataclass(frozen=True, kw_only=True, slots=True)
class GateInputs:
    """The inputs of the gate, read once for all images."""

    policy: Policy
    suite: Suite
    runs: KeptRuns  # this machine's own
    keys: tuple[KeyInRole, ...] = ()  # of the policy
    named: tuple[KeyInRole, ...] = ()  # of the caller; a laboratory's makes signatures a requirement
    given: tuple[Path, ...] = ()  # reports, and folders of them; empty: this machine's own runs
    nonce: str | None = None

    @property
    def trusted(self) -> tuple[KeyInRole, ...]:
        """The trusted keys."""
        return (*self.keys, *self.named)

    def demand_keys(self, policy_file: Path) -> None:
        """:raises ConfigError: the policy, of that file, requires signatures, and no key is trusted."""
        if self.policy.signed and not keys_for("laboratory", self.trusted):
            raise ConfigError(
                f"the policy in {policy_file} requires signed reports, and no key is trusted",
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
            nonce=self.nonce,
            at=datetime.now(timezone.utc),
        )

    def _signed_reports(self, image: Digest) -> list[SignedReport]:
        own = self.runs.of(image)
        if not self.given:
            return own
        made_here = [signed_report.report for signed_report in own]
        return [
            replace(signed_report, own=signed_report.report in made_here)
            for path in self.given
            for signed_report in self._read(path, image)
        ]

    def _read(self, path: Path, image: Digest) -> Iterator[SignedReport]:
        """The report in the file *path*; of a folder, the reports of *image*."""
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
