"""`torchkiln gate`: may this image be published?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from torchkiln.cli.options import images_folder, layout_option, matrix_option
from torchkiln.cli.reports import THERE, public_keys, signature_line, trust
from torchkiln.errors import ConfigError, GateRefused


@click.command("gate")
@click.argument("tag")
@click.option(
    "--report",
    "report_files",
    type=THERE,
    multiple=True,
    required=True,
    metavar="REPORT",
    help="a report of it, plain or signed; several complete each other",
)
@trust
@click.option("--nonce", metavar="WORD", help="the word that was given to `smoke --nonce`")
@matrix_option
@images_folder
@layout_option()
@click.option(
    "--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="another suite"
)
@click.option("--json", "as_json", is_flag=True, help="one object on stdout: cleared, missing")
def gate(
    tag: str,
    report_files: tuple[Path, ...],
    trust_files: tuple[Path, ...],
    nonce: str | None,
    matrix_file: Path,
    images: Path,
    output: Path,
    suite_folder: Path | None,
    as_json: bool,
) -> None:
    """Hold smoke reports against the policy in matrix.yaml; print the digest of a cleared image.

    Ends with exit 7 and a list of all that is missing where it is not cleared, 12 where a signature is bad.
    """
    from torchkiln import attestation, facts, matrix
    from torchkiln.gate import clear
    from torchkiln.lock import load_locked
    from torchkiln.oci.layout import open_layout
    from torchkiln.places import ROOT
    from torchkiln.suite import load_suite

    known = facts.load()
    policy = matrix.read(matrix_file, known).policy
    trusted = public_keys(trust_files)
    if policy.signed and not trusted:
        raise ConfigError(
            f"the policy in {matrix_file} demands signed reports, and no key is trusted",
            hint="name the signer's public key: --trust PUBLIC.pem",
        )
    witnesses = [attestation.read(path, trusted) for path in report_files]
    found = open_layout(output).image(tag)
    labels = found.config.get("config", {}).get("Labels") or {}
    locked = load_locked(images, labels.get("org.opencontainers.image.version", tag))
    try:
        cleared = clear(
            witnesses,
            replace(policy, signed=bool(trusted)),
            locked,
            load_suite(suite_folder or ROOT / "smoke_tests"),
            image=found.manifest,
            nonce=nonce,
        )
    except GateRefused as refused:
        if as_json:
            missing = [{"what": what, "why": why} for what, why in refused.missing]
            click.echo(json.dumps({"image": found.manifest, "cleared": None, "missing": missing}, indent=2))
        raise
    for witness in witnesses:
        click.echo(f"gate: {witness.name}: {signature_line(witness)}", err=True)
    left_out = [f"{check} ({fact})" for check, fact in cleared.left_out]
    also = f"; not applicable: {', '.join(left_out)}" if left_out else ""
    click.echo(f"gate: {cleared.tag}: {len(cleared.passed)} checks passed{also}", err=True)
    if as_json:
        told = {
            "tag": cleared.tag,
            "digest": cleared.image,
            "suite": cleared.suite,
            "passed": list(cleared.passed),
            "not_applicable": dict(cleared.left_out),
            "signers": list(cleared.signers),
        }
        click.echo(json.dumps({"image": found.manifest, "cleared": told, "missing": []}, indent=2))
    else:
        click.echo(cleared.image)
