"""`torchkiln verify`: is an image what it claims to be, in a layout or in a registry?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from torchkiln.attest.keys import NamedKey
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import here_or_checkout
from torchkiln.cli.shared.trust_options import policy_option, rules_of, trust_of, trust_options
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.matrix import facts, matrix
from torchkiln.publish.connect import open_registry
from torchkiln.publish.verification import Depth, Verified, VerifySession, verify_layout
from torchkiln.registry.reference import ImageReference, parse_reference
from torchkiln.smoke.suite import load_suite
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


@click.command("verify")
@click.argument("target", metavar="DIR[:REF]|REGISTRY/REPOSITORY[:TAG|@DIGEST]")
@trust_options("--key")
@click.option("--full", is_flag=True, help="fetch the layers too, and look at every byte")
@click.option("--rebuild", is_flag=True, help="build it again from its lock, and compare the digests")
@click.option("--untrusted", is_flag=True, help="with --rebuild: though no key or identity vouches for it")
@policy_option
@click.option(
    "--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="another suite"
)
@click.option("--plain-http", is_flag=True, help="no https, though the registry is not this machine")
@click.option("--json", "as_json", is_flag=True, help="one object on stdout")
@click.option("--quiet", "-q", is_flag=True, help="say nothing but the digest, or what is wrong")
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
    """Is an image what it claims to be? Prints its digest and name; exit 12 with every fault where not.

    Of a layout: every digest, size and diff_id is computed anew, every file in the layers looked at. Of an
    image in a registry, from there alone: signatures, provenance, configuration and layers against the lock,
    the tag against what was signed, smoke reports against the policy, SBOM; with --full its layers too.
    Without --key or --identity it only looks: no signature is verified, and --json says "trusted": false.
    """
    if untrusted and not rebuild:
        raise ConfigError("--untrusted is for --rebuild alone", hint="add --rebuild, or leave it out")
    folder, ref = split_target(target)
    if folder.is_dir():
        _layout(target, folder, ref, as_json)
        return
    reference, depth = published_reference(target), Depth(full=full, rebuild=rebuild, untrusted=untrusted)
    known, matrix_file = facts.load(), policy_file or here_or_checkout("matrix.yaml")
    grid = matrix.read(matrix_file, known)
    rules = rules_of(policy_file, matrix_file, grid)
    trust = trust_of(rules, keys, identity, issuer)
    suite = load_suite(suite_folder)
    depth.demand_trust(trust)
    with (
        open_registry(reference.repository, os.environ, plain_http=plain_http) as registry,
        console.progress(quiet=quiet) as observer,
    ):
        session = VerifySession(
            policy=rules.policy,
            policy_matrix=rules.matrix,
            suite=suite,
            trust=trust,
            matrix=grid,
            facts=known,
            store=Store(cache_root(), on_wait=console.waiting),
            observer=observer,
            say=console.say,
        )
        found = session.run(reference, registry, depth)
    _tell(found, as_json=as_json, quiet=quiet)
    found.demand_good()
    if not as_json:
        click.echo(f"{found.digest} {found.reference}")


def _tell(found: Verified, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        told = {
            "reference": str(found.reference),
            "digest": found.digest,
            "verified": found.verified,
            "trusted": found.trusted,
            "points": [{"what": one.what, "good": one.good, "text": one.text} for one in found.points],
        }
        click.echo(json.dumps(told, indent=2))
    elif not quiet:
        for point in found.points:
            mark, what = "ok" if point.good else "BAD", point.what
            for line in printable(point.text).splitlines() or [""]:
                click.echo(f"{mark:<4}{what:<12}{line}", err=True)
                mark = what = ""


def _layout(target: str, folder: Path, ref: str | None, as_json: bool) -> None:
    names, faults = verify_layout(folder, ref)
    if as_json:
        images = [{"ref": name, "digest": digest} for name, digest in names.items()]
        listed = [{"where": fault.where, "what": fault.what} for fault in faults]
        click.echo(json.dumps({"layout": str(folder), "images": images, "faults": listed}, indent=2))
    else:
        for name, digest in names.items():
            click.echo(f"{digest} {name}")
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise VerificationFailed(
            "\n".join((f"{target}: {count}", *map(str, faults))),
            hint="run: torchkiln cache verify --repair; then build the image again",
        )


def split_target(target: str) -> tuple[Path, str | None]:
    """`dist/layout:tag` as folder and ref; a folder with a colon in its name is taken as it is."""
    if Path(target).is_dir():
        return Path(target), None
    folder, colon, ref = target.partition(":")
    while colon and not Path(folder).is_dir():
        more, colon, ref = ref.partition(":")
        folder += ":" + more
    return (Path(folder), ref) if colon else (Path(target), None)


def published_reference(target: str) -> ImageReference:
    """*target* as a reference in a registry.

    :raises ConfigError: it is none, and no folder either.
    """
    try:
        return parse_reference(target)
    except ConfigError as error:
        raise ConfigError(
            f"{target}: no such folder, and no reference in a registry ({error.message})",
            hint="verify takes the layout that `build` prints, DIR[:REF], or REGISTRY/REPOSITORY:TAG",
        ) from None
