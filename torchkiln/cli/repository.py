"""`torchkiln ls` and `withdraw`: lists the images of a repository, and retracts one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from torchkiln.attest.signers import Trust, with_signer
from torchkiln.attest.statement import demand_reason
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import FOLDER, images_folder, json_option, matrix_option, plain_http_option
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.trust_options import (
    Signing,
    Trusting,
    active_policy,
    signer_of,
    signing_options,
    trust_options,
)
from torchkiln.errors import ConfigError, RegistryError
from torchkiln.gate.inputs import kept_reports, locks_in
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix import facts, matrix
from torchkiln.publishing.attached import NOT_VERIFIED
from torchkiln.publishing.catalog import CatalogEntry, catalog, retract
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository, parse_reference, parse_repository
from torchkiln.registry.session import open_registry
from torchkiln.site.catalogue import Published
from torchkiln.site.folder import demand_replaceable, write_folder
from torchkiln.site.images import catalogue, read_records
from torchkiln.site.pages import render
from torchkiln.smoke.reuse import TIME
from torchkiln.smoke.suite import load_suite

_PROOFS = Path("docs/proofs")


def _proofs() -> Path | None:
    """docs/proofs of the current folder if it exists, else the one beside the matrix, else none."""
    context = click.get_current_context(silent=True)
    matrix: Path | None = context.params.get("matrix_file") if context else None
    folders = (_PROOFS, *([matrix.parent / _PROOFS] if matrix else []))
    return next((folder for folder in folders if folder.is_dir()), None)


@click.command("ls")
@click.argument("target", metavar="REGISTRY/REPOSITORY", required=False)
@click.option("--site", type=FOLDER, metavar="DIR", help="write a catalogue as static pages to DIR")
@images_folder
@click.option(
    "--proofs",
    type=FOLDER,
    default=_proofs,
    show_default="docs/proofs, if it exists",
    help="with --site: the folder of smoke reports, and of the public keys that signed them",
)
@trust_options("--key", only="publisher")
@matrix_option
@plain_http_option
@json_option
def ls(
    target: str | None,
    site: Path | None,
    images: Path,
    proofs: Path | None,
    trusting: Trusting,
    matrix_file: Path,
    plain_http: bool,
    as_json: bool,
) -> None:
    """List the images of a repository: tags, digest, the GPUs each was tested on, and warnings.

    With --site DIR the images that are locked in --images are written as a catalogue of static pages, for a
    browser: content, sizes, shared layers, reports, commands, a picker and a comparison. The repository is
    then optional.
    """
    if target is None and site is None:
        raise click.MissingParameter(param_hint="'REGISTRY/REPOSITORY'", param_type="argument")
    if as_json and site is not None:
        raise click.UsageError("--json cannot be used with --site")
    known = facts.load(matrix_file)
    grid = matrix.read(matrix_file, known)
    registry_name, found = "", list[CatalogEntry]()
    if target is not None:
        repository = parse_repository(target)
        registry_name = str(repository)
        trust = trusting.trust(active_policy(trusting.policy_file, matrix_file, grid))
        with open_registry(repository, os.environ, plain_http=plain_http) as registry:
            registry.check()
            found = catalog(RepositoryReader(registry, repository), trust)
        if as_json:
            click.echo(json.dumps(_document(repository, found, trust), indent=2))
            return
        if not trust.verifies:
            console.say(NOT_VERIFIED)
    if site is None:
        table(("TAGS", "DIGEST", "TESTED ON", "WARNINGS"), [_row(image) for image in found], text=(0, 2, 3))
        return
    _write_site(site, LockFolder(images, grid, known), proofs, registry_name, found)


def _write_site(
    site: Path, locks: LockFolder, proofs: Path | None, registry: str, published: Sequence[CatalogEntry]
) -> None:
    """Write the catalogue, and print its folder.

    :param registry: the named repository, and its images; empty if none was named.
    :raises ConfigError: the folder has files that do not belong to a catalogue.
    :raises NothingSelected: no lock can be listed.
    :raises VerificationFailed: the signature of a report is invalid.
    """
    demand_replaceable(site)
    kept = kept_reports(proofs) if proofs else ()
    earlier = locks_in(proofs) if proofs else {}
    records = read_records(locks, [each.signed for each in kept], console.say, earlier)
    in_registry = {
        tag: Published(digest=entry.digest, notices=entry.notices, retracted=bool(entry.retracted))
        for entry in published
        for tag in entry.tags
    }
    listed = catalogue(
        records, locks.matrix, locks.facts, load_suite(), registry=registry, published=in_registry
    )
    tags = {image.tag for image in listed.images}
    beside = dict(file for each in kept if each.signed.report.tag in tags for file in each.files)
    files = render(listed, locks.facts, beside)
    write_folder(site, files)
    console.say(f"images: {len(tags)}; files: {len(files)}, {console.size(sum(map(len, files.values())))}")
    console.echo(site)


def _document(repository: Repository, images: Sequence[CatalogEntry], trust: Trust) -> dict[str, Any]:
    return {
        "repository": str(repository),
        "signatures": "verified" if trust.verifies else "not verified",
        "trusted": trust.verifies,
        "images": [
            {
                "digest": image.digest,
                "tags": list(image.tags),
                "version": image.version,
                "gpus": list(image.gpus),
                **({"only_for": list(image.only_for)} if image.only_for else {}),
                **({"own_use": True} if image.own_use else {}),
                "good": image.good,
                "override": image.override,
                "retracted": image.retracted,
                "untrusted_retractions": list(image.untrusted_retractions),
                "misnamed": list(image.misnamed),
                "faults": list(image.faults),
            }
            for image in images
        ],
    }


def _row(image: CatalogEntry) -> list[str]:
    gpus, warnings = ", ".join(image.gpus) or "-", "; ".join(image.warnings)
    return [" ".join(image.tags), image.digest[:19], gpus, warnings]


@click.command("withdraw")
@click.argument("target", metavar="REGISTRY/REPOSITORY:TAG|@DIGEST")
@click.option("--reason", required=True, help="why the image is retracted; stored with it")
@signing_options
@trust_options(only="publisher")
@matrix_option
@plain_http_option
@json_option
def withdraw(
    target: str,
    reason: str,
    signing: Signing,
    trusting: Trusting,
    matrix_file: Path,
    plain_http: bool,
    as_json: bool,
) -> None:
    """Retract a published image, and move its tags back to the last good image.

    The digest and the dated tag stay; `verify` then refuses the image, and `ls` shows the reason. A tag
    without a good image is deleted; if the registry cannot delete tags, the command fails (exit 9).
    """
    reference = parse_reference(target)
    name = reference.digest or reference.tag
    if name is None:
        raise ConfigError(
            f"{target}: no tag and no digest",
            hint="write REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@DIGEST",
        )
    grid = matrix.read(matrix_file, facts.load(matrix_file))
    demand_reason(reason)
    active = active_policy(trusting.policy_file, matrix_file, grid)
    signer = signer_of(signing, demanded=active.policy.signed)
    trust = with_signer(trusting.trust(active), signer)
    if not trust.verifies:
        console.say(f"{NOT_VERIFIED}; the images that tags move to are not verified either")
    with open_registry(reference.repository, os.environ, plain_http=plain_http) as registry:
        registry.check()
        reading = RepositoryReader(registry, reference.repository)
        when = datetime.now(timezone.utc).strftime(TIME)
        result = retract(reading, reading.require(name), signer, trust, grid, reason=reason, when=when)
    for move in result.moved:
        without = "deleted" if move.gone else "not moved"
        outcome = f"moved to {move.to}" if move.to else f"{without}: no good image is left for it"
        console.say(f"{move.tag}: {outcome}")
    if as_json:
        moved = [{"tag": move.tag, "to": move.to, "gone": move.gone} for move in result.moved]
        click.echo(json.dumps({"digest": result.digest, "statement": result.statement, "moved": moved}))
    else:
        console.echo(result.digest)
    if stuck := [move.tag for move in result.moved if not (move.to or move.gone)]:
        raise RegistryError(
            f"{reference.repository}: still tagged, although retracted: {', '.join(stuck)}",
            hint="delete these tags with the registry's own tools: no good image is left to move them to,"
            " and this registry has no API to delete tags",
        )
