"""`torchkiln gate`: may this image be published?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from torchkiln.attest.keys import NamedKey
from torchkiln.cli.shared.gate_output import inputs_of, reports_option, show
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.reports import trust
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.cli.shared.trust_options import policy_option, rules_of
from torchkiln.errors import ConfigError
from torchkiln.gate.gate import Judgement, clear
from torchkiln.smoke.session import image_and_lock


@click.command("gate", options_metavar="[OPTIONS]")
@click.argument("tag", required=False, metavar="[TAG]")
@selection
@reports_option
@trust
@policy_option
@click.option("--nonce", metavar="WORD", help="the word that was given to `smoke --nonce`")
@images_folder
@layout_option()
@click.option(
    "--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="another suite"
)
@click.option("--json", "as_json", is_flag=True, help="one object on stdout: cleared, missing, checks")
def gate(
    tag: str | None,
    chosen: Chosen,
    report_files: tuple[Path, ...],
    trust_files: tuple[NamedKey, ...],
    policy_file: Path | None,
    nonce: str | None,
    images: Path,
    output: Path,
    suite_folder: Path | None,
    as_json: bool,
) -> None:
    """Hold smoke reports on the image TAG against the policy; print a cleared one's digest.

    Without --report: the runs that this machine made and keeps. Ends with exit 7 and a list of all that is
    missing where it is not cleared, 12 where a signature is bad.
    """
    if bool(tag) == chosen.any:
        raise ConfigError("gate takes one image: its TAG, or --torch and --cuda", hint="see: gate --help")
    rules = rules_of(policy_file, chosen.matrix_file, chosen.grid()[0])
    inputs = inputs_of(rules, suite_folder, reports=report_files, trust=trust_files, nonce=nonce)
    found, _, locked = image_and_lock(tag or chosen.tag("gate"), output, images)
    judged = inputs.judge(found, locked)
    show(judged)
    if as_json:
        click.echo(json.dumps(_told(judged), indent=2))
    clear(judged)
    left_out = [f"{check} ({fact})" for check, fact in judged.left_out]
    also = f"; not applicable: {', '.join(left_out)}" if left_out else ""
    click.echo(f"gate: {judged.tag}: {len(judged.passed)} checks passed{also}", err=True)
    if not as_json:
        click.echo(judged.image)


def _told(judged: Judgement) -> dict[str, Any]:
    """The contract of `gate --json`."""
    cleared = {
        "tag": judged.tag,
        "digest": judged.image,
        "suite": judged.suite,
        "passed": list(judged.passed),
        "not_applicable": dict(judged.left_out),
        "signers": list(judged.signers),
    }
    return {
        "image": judged.image,
        "cleared": None if judged.missing else cleared,
        "missing": [{"what": what, "why": why} for what, why in judged.missing],
        "checks": [
            {
                "check": one.check,
                "tier": one.tier,
                "demanded": one.required,
                "outcome": one.outcome,
                "measured": one.measured,
                "where": list(one.where),
                "fact": one.fact,
                "lacks": list(one.lacks),
            }
            for one in judged.statuses
        ],
    }
