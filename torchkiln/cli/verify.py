"""`torchkiln verify`: verifies an image in a layout or in a registry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from torchkiln.attest.keys import NamedKey
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import here_or_checkout, json_option, plain_http_option, suite_option
from torchkiln.cli.shared.trust_options import active_policy, policy_option, trust_of, trust_options
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.matrix import facts, matrix
from torchkiln.publish.connect import open_registry
from torchkiln.publish.verification import Depth, Verified, VerifySession, verify_layout
from torchkiln.registry.reference import ImageReference, parse_reference
from torchkiln.smoke.suite import load_suite


@click.command("verify")
@click.argument("target", metavar="DIR[:REF]|REGISTRY/REPOSITORY[:TAG|@DIGEST]")
@trust_options("--key")
@click.option("--full", is_flag=True, help="also download the layers, and verify every byte")
@click.option("--rebuild", is_flag=True, help="build the image again from its lock, and compare the digests")
@click.option("--untrusted", is_flag=True, help="with --rebuild: build without a trusted key or identity")
@policy_option
@suite_option
@plain_http_option
@json_option
@click.option("--quiet", "-q", is_flag=True, help="print only the digest, or the faults")
def verify(
    target: str,
    keys: tuple[NamedKey, ...],
    identity: str | None,
    issuer: str,
    full: bool,
    rebuild: bool,
    untrusted: bool,
    policy_file: Path | None,
    suite_folder: Path | None,
    plain_http: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Verify an image; print its digest and name, or list every fault and exit with 12.

    In a layout: every digest, size and diff_id, and every file in the layers. In a registry: signatures,
    provenance, configuration and layers (compared with the lock), the tag, smoke reports (compared with the
    policy) and SBOM; with --full the content of the layers too. Without --key or --identity no signature is
    verified, and --json prints "trusted": false.
    """
    if untrusted and not rebuild:
        raise ConfigError("--untrusted requires --rebuild", hint="add --rebuild, or leave out --untrusted")
    folder, ref = split_target(target)
    if folder.is_dir():
        _layout(target, folder, ref, as_json)
        return
    reference, depth = published_reference(target), Depth(full=full, rebuild=rebuild, untrusted=untrusted)
    known, matrix_file = facts.load(), policy_file or here_or_checkout("matrix.yaml")
    grid = matrix.read(matrix_file, known)
    active = active_policy(policy_file, matrix_file, grid)
    trust = trust_of(active, keys, identity, issuer)
    suite = load_suite(suite_folder)
    depth.demand_trust(trust)
    with (
        open_registry(reference.repository, os.environ, plain_http=plain_http) as registry,
        console.progress(quiet=quiet) as observer,
    ):
        session = VerifySession(
            policy=active.policy,
            policy_matrix=active.matrix,
            suite=suite,
            trust=trust,
            matrix=grid,
            facts=known,
            store=console.open_cache(),
            observer=observer,
            say=console.say,
        )
        result = session.run(reference, registry, depth)
    _print(result, as_json=as_json, quiet=quiet)
    result.demand_good()
    if not as_json:
        click.echo(f"{result.digest} {result.reference}")


def _print(result: Verified, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        document = {
            "reference": str(result.reference),
            "digest": result.digest,
            "verified": result.verified,
            "trusted": result.trusted,
            "points": [
                {"what": point.what, "good": point.good, "text": point.text} for point in result.points
            ],
        }
        click.echo(json.dumps(document, indent=2))
    elif not quiet:
        for point in result.points:
            mark, what = "ok" if point.good else "BAD", point.what
            for line in printable(point.text).splitlines() or [""]:
                click.echo(f"{mark:<4}{what:<12}{line}", err=True)
                mark = what = ""


def _layout(target: str, folder: Path, ref: str | None, as_json: bool) -> None:
    names, faults = verify_layout(folder, ref)
    if as_json:
        images = [{"ref": name, "digest": digest} for name, digest in names.items()]
        details = [{"where": fault.where, "what": fault.what} for fault in faults]
        click.echo(json.dumps({"layout": str(folder), "images": images, "faults": details}, indent=2))
    else:
        for name, digest in names.items():
            click.echo(f"{digest} {name}")
    if faults and not (folder / "oci-layout").exists():
        raise VerificationFailed(
            "\n".join((f"{target}: not an OCI layout", *map(str, faults))),
            hint="name a layout that torchkiln build wrote, by default dist",
        )
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise VerificationFailed(
            "\n".join((f"{target}: {count}", *map(str, faults))),
            hint="run: torchkiln cache verify --repair; then build the image again",
        )


def split_target(target: str) -> tuple[Path, str | None]:
    """`dist/layout:tag` as folder and ref; the name of a folder may contain a colon."""
    if Path(target).is_dir():
        return Path(target), None
    folder, colon, ref = target.partition(":")
    while colon and not Path(folder).is_dir():
        more, colon, ref = ref.partition(":")
        folder += ":" + more
    return (Path(folder), ref) if colon else (Path(target), None)


def published_reference(target: str) -> ImageReference:
    """*target* as a reference in a registry.

    :raises ConfigError: it is neither a reference nor a folder.
    """
    try:
        return parse_reference(target)
    except ConfigError as error:
        raise ConfigError(
            f"{target}: no such folder, and not a reference in a registry "
            f"({error.message.removeprefix(f'{target}: ')})",
            hint="name a layout, DIR or DIR:TAG, or an image in a registry, REGISTRY/REPOSITORY:TAG",
        ) from None
