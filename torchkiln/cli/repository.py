"""`catalog` and `retract`: what is in a repository, and what should not be used any more."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

import click

from torchkiln.attest.keys import NamedKey
from torchkiln.attest.retraction import demand_reason
from torchkiln.attest.trust import with_sealer
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import matrix_option
from torchkiln.cli.shared.signing_options import sealer_of, sealer_options
from torchkiln.cli.shared.tables import table
from torchkiln.cli.shared.trust_options import policy_option, rules_of, trust_of, trust_options
from torchkiln.errors import ConfigError, RegistryError, printable
from torchkiln.matrix import facts, matrix
from torchkiln.publish.attached import NOT_VERIFIED
from torchkiln.publish.catalog import Listed
from torchkiln.publish.catalog import catalog as listed_in
from torchkiln.publish.connect import open_registry
from torchkiln.publish.retract import retract as done
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import parse_reference, parse_repository
from torchkiln.smoke.reuse import TIME

_plain_http = click.option(
    "--plain-http", is_flag=True, help="no https, though the registry is not this machine"
)


@click.command("catalog")
@click.argument("target", metavar="REGISTRY/REPOSITORY")
@trust_options("--key")
@policy_option
@matrix_option
@_plain_http
@click.option("--json", "as_json", is_flag=True, help="one object on stdout: images")
def catalog(
    target: str,
    keys: tuple[NamedKey, ...],
    identity: str | None,
    issuer: str,
    policy_file: Path | None,
    matrix_file: Path,
    plain_http: bool,
    as_json: bool,
) -> None:
    """List a repository's images: tags, digest, on which GPUs each was proved, what speaks against it."""
    repository = parse_repository(target)
    rules = rules_of(policy_file, matrix_file, matrix.read(matrix_file, facts.load()))
    trust = trust_of(rules, keys, identity, issuer)
    with open_registry(repository, os.environ, plain_http=plain_http) as registry:
        registry.check()
        listed = listed_in(RepositoryReader(registry, repository), trust)
    if as_json:
        told = {
            "repository": str(repository),
            "signatures": "looked at" if trust.looks else "not looked at",
            "trusted": trust.looks,
            "images": [
                {
                    "digest": one.digest,
                    "tags": list(one.tags),
                    "version": one.version,
                    "gpus": list(one.gpus),
                    "good": one.good,
                    "override": one.override,
                    "retracted": one.retracted,
                    "untrusted_retractions": list(one.unheeded),
                    "misnamed": list(one.misnamed),
                    "faults": list(one.faults),
                }
                for one in listed
            ],
        }
        click.echo(json.dumps(told, indent=2))
        return
    if not trust.looks:
        console.say(NOT_VERIFIED)
    table(("TAGS", "DIGEST", "PROVED ON", "REMARK"), [_row(one) for one in listed])


def _row(one: Listed) -> list[str]:
    gpus = ", ".join(one.gpus) or "-"
    return [printable(text) for text in (" ".join(one.tags), one.digest[:19], gpus, _against(one))]


def _against(one: Listed) -> str:
    told = [f"retracted: {one.retracted}"] if one.retracted else []
    told += [f"published in spite of the gate: {one.override}"] if one.override else []
    told += [f"was not published as {tag}: somebody moved it" for tag in one.misnamed]
    told += [f"retraction that no trusted key signed, does not count: {reason}" for reason in one.unheeded]
    told += one.faults
    if not one.cleared and not one.override:
        told.append("no decision of a gate")
    return "; ".join(told)


@click.command("retract")
@click.argument("target", metavar="REGISTRY/REPOSITORY:TAG|@DIGEST")
@click.option("--reason", required=True, help="why; stays with the image")
@sealer_options
@trust_options()
@policy_option
@matrix_option
@_plain_http
@click.option("--json", "as_json", is_flag=True, help="one object on stdout: digest, moved")
def retract(
    target: str,
    reason: str,
    key_file: Path | None,
    keyless: bool,
    keys: tuple[NamedKey, ...],
    identity: str | None,
    issuer: str,
    policy_file: Path | None,
    matrix_file: Path,
    plain_http: bool,
    as_json: bool,
) -> None:
    """Say of a published image that it is not to be used, and move its tags back to the last good one.

    The digest and the dated tag stay; `verify` refuses it from then on, `catalog` says why. A tag for which
    no good image is left is deleted, where the registry can; where it cannot, that is told (exit 9).
    """
    reference = parse_reference(target)
    name = reference.digest or reference.tag
    if name is None:
        raise ConfigError(f"{target}: names no image", hint="REGISTRY/REPOSITORY:TAG, or @DIGEST")
    grid = matrix.read(matrix_file, facts.load())
    demand_reason(reason)
    rules = rules_of(policy_file, matrix_file, grid)
    sealer = sealer_of(key_file, keyless, demanded=rules.policy.signed)
    trust = with_sealer(trust_of(rules, keys, identity, issuer), sealer)
    if not trust.looks:
        console.say(f"{NOT_VERIFIED}; tags go to what anybody says is good")
    with open_registry(reference.repository, os.environ, plain_http=plain_http) as registry:
        registry.check()
        reading = RepositoryReader(registry, reference.repository)
        when = datetime.now(timezone.utc).strftime(TIME)
        found = done(reading, reading.require(name), sealer, trust, grid, reason=reason, when=when)
    for one in found.moved:
        lost = "deleted" if one.gone else "not moved"
        console.say(f"{one.tag}: {f'now {one.to}' if one.to else f'{lost}: no good image is left for it'}")
    if as_json:
        moved = [{"tag": one.tag, "to": one.to, "gone": one.gone} for one in found.moved]
        click.echo(json.dumps({"digest": found.digest, "statement": found.statement, "moved": moved}))
    else:
        click.echo(found.digest)
    if stuck := [one.tag for one in found.moved if not (one.to or one.gone)]:
        raise RegistryError(
            f"{reference.repository}: {', '.join(stuck)} still stands for the retracted image",
            hint="no good image is left, and this registry deletes no tags: delete it by its own means",
        )
