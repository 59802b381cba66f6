"""An image of a layout, reports, keys → what the gate finds: for `gate` and `publish`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchkiln.cli.shared.options import cache_root
from torchkiln.cli.shared.reports import NamedKey, public_keys, signature_line
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.trust_options import Rules
from torchkiln.errors import ConfigError, KilnError

if TYPE_CHECKING:
    from torchkiln.attest.roles import KeyInRole
    from torchkiln.gate.check_status import CheckStatus
    from torchkiln.gate.gate import Judgement
    from torchkiln.matrix.policy import Policy
    from torchkiln.model.digest import Digest
    from torchkiln.model.lock import LockedCell
    from torchkiln.model.report import SignedReport
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.smoke.suite import Suite

_STYLES = {"passed": "green", "missing": "yellow", "refused": "red"}
_WIDTH = 70  # characters of measured values
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What images are judged by, read once for all of them."""

    policy: Policy
    suite: Suite
    trusted: tuple[KeyInRole, ...]
    given: tuple[Path, ...]  # reports, and folders of them; empty: this machine's own runs
    signed: bool = False  # demanded by the command line, whatever the policy says of a cell
    nonce: str | None = None

    def judge(self, image: ImageOnDisk, locked: LockedCell) -> Judgement:
        """What the gate finds of *image*, at this moment."""
        from torchkiln.gate.gate import judge

        policy = self.policy.of(locked.resolution)
        return judge(
            self._signed_reports(image.manifest),
            replace(policy, signed=policy.signed or self.signed),
            locked,
            self.suite,
            image=image.manifest,
            nonce=self.nonce,
            at=datetime.now(timezone.utc),
        )

    def _signed_reports(self, image: Digest) -> list[SignedReport]:
        from torchkiln.cli.shared.smoke_history import own_runs
        from torchkiln.store.store import Store

        own = own_runs(Store(cache_root()), image)
        if not self.given:
            return own
        made_here = [signed_report.report for signed_report in own]
        return [
            replace(signed_report, own=signed_report.report in made_here)
            for path in self.given
            for signed_report in self._read(path, image)
        ]

    def _read(self, path: Path, image: Digest) -> Iterator[SignedReport]:
        """The report in the file *path*; of a folder, those that tell of *image*."""
        from torchkiln.attest.roles import keys_for
        from torchkiln.smoke import attestation

        keys = keys_for("laboratory", self.trusted)
        if not path.is_dir():
            yield attestation.read(path, keys)
            return
        for file in attestation.files(path):
            try:
                there = attestation.filed(file)
                told = there.signed_report().report.image
            except KilnError:  # not each file in a folder is a report
                continue
            if told == image:
                yield there.signed_report(keys)


def inputs_of(
    rules: Rules,
    suite_folder: Path | None,
    *,
    reports: Sequence[Path],
    trust: Sequence[NamedKey],
    nonce: str | None = None,
) -> Inputs:
    """As *rules* say; a laboratory's key that is named on the command line makes signatures a demand.

    :raises ConfigError: a file is missing or wrong; signatures are demanded, and no key is trusted.
    """
    from torchkiln.attest.roles import keys_for
    from torchkiln.cli.shared.checks import suite_of

    given = public_keys(trust)
    trusted = (*rules.keys, *given)
    if rules.policy.signed and not keys_for("laboratory", trusted):
        raise ConfigError(
            f"the policy in {rules.file} demands signed reports, and no key is trusted",
            hint="name the signer's public key: --trust PUBLIC.pem, or `keys` in a file that --policy names",
        )
    return Inputs(
        policy=rules.policy,
        suite=suite_of(suite_folder),
        trusted=trusted,
        given=tuple(reports),
        signed=bool(keys_for("laboratory", given)),
        nonce=nonce,
    )


def show(judged: Judgement) -> None:
    """On stderr: whose reports, by number, then the checks, a line each."""
    from torchkiln.errors import printable
    from torchkiln.smoke import hosts

    numbers = {}
    for number, signed_report in enumerate(judged.signed_reports, start=1):
        numbers[signed_report.name] = str(number)
        gpus = hosts.kinds(json.loads(signed_report.report.host)) or "no GPU"
        own = ", a run of this machine" if signed_report.own else ""
        told = f"report {number}: {signed_report.name}: {gpus}, {signature_line(signed_report)}{own}"
        click.echo(printable(told), err=True)
    table(
        ("CHECK", "TIER", "DEMANDED", "OUTCOME", "REPORT", "MEASURED"),
        [[printable(text) for text in _row(one, numbers)] for one in judged.statuses],
        styles=_STYLES,
        err=True,
    )


def _row(one: CheckStatus, numbers: Mapping[str, str]) -> tuple[str, ...]:
    told = one.measured or one.fact or (one.lacks[0] if one.required else "")
    short = told if len(told) <= _WIDTH else f"{told[: _WIDTH - 1]}…"
    where = ", ".join(numbers[name] for name in one.where) or "-"
    return one.check, str(one.tier), "yes" if one.required else "no", one.outcome, where, short


def reports_option(command: F) -> F:
    """The option --report."""
    return click.option(
        "--report",
        "report_files",
        type=click.Path(path_type=Path, exists=True),
        multiple=True,
        metavar="REPORT",
        help="a report, plain or signed, or a folder of them; several complete each other "
        "[default: this machine's own runs]",
    )(command)
