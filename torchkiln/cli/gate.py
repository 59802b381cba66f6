"""`torchkiln gate`: decides whether an image may be published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.gate_output import Evidence, evidence_options, show
from torchkiln.cli.shared.image_names import named_image
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import name_argument
from torchkiln.cli.shared.terminal import echo
from torchkiln.gate.clearance import project_json
from torchkiln.gate.gate import GateResult, clear
from torchkiln.projects.gate.read import judge_image


@click.command("gate", options_metavar="[OPTIONS]")
@name_argument
@selection
@evidence_options("laboratory")
@click.option("--nonce", metavar="WORD", help="require reports with this word, from `smoke run --nonce`")
@images_folder
@layout_option()
@click.option("--json", "as_json", is_flag=True, help="print JSON: cleared, missing, checks")
def gate(
    name: str | None,
    chosen: CellOptions,
    evidence: Evidence,
    nonce: str | None,
    images: Path,
    output: Path,
    as_json: bool,
) -> None:
    """Compare the smoke reports of the image TAG with the policy; print the digest if it may be published.

    The image of a project is compared with its parent image, which must meet the policy with its own reports.

    Exits with 7 and a list of what is missing if it may not, with 12 if a signature is invalid.
    """
    image = named_image(name, output, chosen, command="gate")
    inputs = evidence.inputs(chosen, nonce)
    result = judge_image(inputs, image.ref, image.layout, images)
    show(result)
    if as_json:
        click.echo(json.dumps(_json(result), indent=2))
    clear(result, inputs.options)
    left_out = [f"{check} ({fact})" for check, fact in result.left_out]
    also = f"; not applicable: {', '.join(left_out)}" if left_out else ""
    if result.project is not None:
        below = result.project.below
        also += f"; on {below.tag}: {len(below.passed)} checks passed"
    echo(f"gate: {result.tag}: {len(result.passed)} checks passed{also}", err=True)
    if not as_json:
        echo(result.image)


def _json(result: GateResult) -> dict[str, Any]:
    cleared = {
        "tag": result.tag,
        "digest": result.image,
        "suite": result.suite,
        "passed": list(result.passed),
        "not_applicable": dict(result.left_out),
        "signers": list(result.signers),
    }
    return {
        "image": result.image,
        **({"project": project_json(result.project)} if result.project else {}),
        "cleared": None if result.missing else cleared,
        "missing": [{"what": what, "why": why} for what, why in result.missing],
        "checks": [
            {
                "check": status.check,
                "tier": status.tier,
                "demanded": status.required,
                "outcome": status.outcome,
                "measured": status.measured,
                "where": list(status.where),
                "fact": status.fact,
                "lacks": list(status.lacks),
            }
            for status in result.statuses
        ],
    }
