"""Makes the gate's inputs from the options of `gate` and `publish`, and prints its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.attest.dsse import fingerprint
from torchkiln.attest.keys import NamedKey, keys_for, public_keys
from torchkiln.cli.shared.options import Decorator, gathered, suite_option
from torchkiln.cli.shared.reports import signature_line, trust_option
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.terminal import echo
from torchkiln.cli.shared.trust_options import active_policy, policy_option
from torchkiln.gate.check_status import CheckStatus
from torchkiln.gate.clearance import not_proved
from torchkiln.gate.gate import GateResult
from torchkiln.gate.hints import GivenOptions
from torchkiln.gate.inputs import GateInputs
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.suite import load_suite
from torchkiln.store.store import Store, cache_root

if TYPE_CHECKING:
    from torchkiln.attest.signers import Signer
    from torchkiln.model.report import Role

_NOT_PROVED = {
    "replaced": "packages that replace those of the parent image",
    "os_packages": "OS packages that the parent image does not have",
    "at_start": ".pth files, which Python runs at each start",
    "variables": "variables that the parent image does not have",
    "may_be_missing": "libraries that may be missing, and packages that may lack libraries",
}
_NAMED = 20  # maximum of names in a line; further names are only counted
_STYLES = {"passed": "green", "missing": "yellow", "refused": "red"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the gate judges by."""

    report_files: tuple[Path, ...]
    trust_files: tuple[NamedKey, ...]
    policy_file: Path | None
    suite_folder: Path | None

    def inputs(self, chosen: CellOptions, nonce: str | None = None) -> GateInputs:
        """The gate's inputs. If the command line names a laboratory's key, reports must be signed.

        :raises ConfigError: a file is missing or wrong; or signatures are required, and no key is trusted.
        """
        active = active_policy(self.policy_file, chosen.matrix_file, chosen.grid()[0])
        found = GateInputs(
            policy=active.policy,
            suite=load_suite(self.suite_folder),
            runs=KeptRuns(store=Store(cache_root()), listener=SmokeLines()),
            keys=active.keys,
            named=tuple(public_keys(self.trust_files)),
            given=self.report_files,
            nonce=nonce,
            options=GivenOptions(
                trust=tuple(str(key.path) for key in self.trust_files if "laboratory" in key.roles),
                reports=tuple(map(str, self.report_files)),
                nonce=nonce,
            ),
        )
        found.demand_keys(active.file)
        return found


def evidence_options(only: Role | None) -> Decorator:
    """The options of an `Evidence`; *only*: the role of a key without one."""
    return gathered(
        "evidence",
        Evidence,
        click.option(
            "--report",
            "report_files",
            type=click.Path(path_type=Path, exists=True),
            multiple=True,
            metavar="REPORT",
            help="a report, signed or not, or a folder of reports; repeatable  [default: the runs of this"
            " machine]",
        ),
        trust_option(only),
        policy_option,
        suite_option,
    )


def with_key(inputs: GateInputs, key_file: Path | None, signer: Signer) -> GateInputs:
    """*inputs* with hints that name *key_file* as the key to sign reports with, if the gate trusts it."""
    from torchkiln.attest.signers import ByKey

    if key_file is None or not isinstance(signer, ByKey):
        return inputs
    laboratories = map(fingerprint, keys_for("laboratory", inputs.trusted))
    if fingerprint(signer.key.public_key()) not in laboratories:
        return inputs
    return replace(inputs, options=replace(inputs.options, key=str(key_file)))


def show(result: GateResult) -> None:
    """Print reports with their signers, and checks, on stderr; of a project first those of its parent."""
    if (project := result.project) is None:
        _show(result)
        return
    _show(project.below, f"the parent image: {project.below.tag}  {project.below.image}\n")
    _show(result, f"\nthe project: {result.tag}  {result.image}\n")
    if project.in_image is not None:
        _show(project.in_image, "\nthe suite in this image, because it has OS packages\n")
    for what, names in not_proved(project).items():
        more = f", and {len(names) - _NAMED} more (--json)" if len(names) > _NAMED else ""
        text = f"not proved: {_NOT_PROVED[what]}: {', '.join(names[:_NAMED])}{more}"
        echo(text, err=True)


def _show(result: GateResult, title: str = "") -> None:
    echo(title, err=True, nl=False)
    numbers = {}
    carried = (signed_report for other in result.earlier for signed_report in other.reports)
    for number, signed_report in enumerate((*result.signed_reports, *carried), start=1):
        numbers[signed_report.name] = str(number)
        gpus = result.gpus_of(signed_report.report) or "no GPU"
        root = f", {signed_report.report.root}" if signed_report.report.root else ""
        own = ", a run of this machine" if signed_report.own else ""
        line = f"report {number}: {signed_report.name}: {gpus}{root}, {signature_line(signed_report)}{own}"
        echo(line, err=True)
    table(
        ("CHECK", "TIER", "REQUIRED", "OUTCOME", "REPORT", "MEASURED"),
        [_row(status, numbers) for status in result.statuses],
        styles=_STYLES,
        text=(5,),
        err=True,
    )


def _row(status: CheckStatus, numbers: Mapping[str, str]) -> tuple[str, ...]:
    detail = status.measured or status.fact or (status.lacks[0] if status.required else "")
    reports = ", ".join(numbers[name] for name in status.where) or "-"
    required = "yes" if status.required else "no"
    return status.check, str(status.tier), required, status.outcome, reports, detail
