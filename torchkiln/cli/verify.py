"""`torchkiln verify`: verifies an image in a layout or in a registry."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.image_names import locate
from torchkiln.cli.shared.options import json_option, layout_option, plain_http_option, suite_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import split_target
from torchkiln.cli.shared.trust_options import Trusting, active_policy, trust_options
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.matrix import facts, matrix
from torchkiln.projects.kind import KINDS
from torchkiln.publishing.verification import Depth, Verified, VerifySession, verify_layout
from torchkiln.registry.reference import ImageReference, parse_reference
from torchkiln.registry.session import open_registry
from torchkiln.smoke.suite import load_suite

# A reference in a registry has a slash.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|sha256:[0-9a-f]{64}")


@click.command("verify")
@click.argument("target", required=False, metavar="TAG|DIR[:REF]|REGISTRY/REPOSITORY[:TAG|@DIGEST]")
@selection
@trust_options("--key", only=None)
@click.option("--full", is_flag=True, help="also download the layers, and verify every byte")
@click.option("--rebuild", is_flag=True, help="build the image again from its lock, and compare the digests")
@click.option("--untrusted", is_flag=True, help="with --rebuild: build without a trusted key or identity")
@layout_option("the OCI layout that has the TAG", owned=False)
@suite_option
@plain_http_option
@json_option
@click.option("--quiet", "-q", is_flag=True, help="print only the digest, or the faults")
def verify(
    target: str | None,
    chosen: CellOptions,
    output: Path,
    trusting: Trusting,
    full: bool,
    rebuild: bool,
    untrusted: bool,
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
        raise ConfigError("--untrusted requires --rebuild", hint="add --rebuild, or omit --untrusted")
    if (target is not None) == chosen.any:
        raise ConfigError(
            "verify takes one image: a TAG, DIR:REF, a reference in a registry, or --torch and --cuda",
            hint="see: torchkiln verify --help",
        )
    if target is None or is_in_layout(target, output):
        folder, ref = _place(target, output, chosen)
        _layout(target or f"{folder}:{ref}", folder, ref, as_json, quiet)
        return
    reference, depth = published_reference(target), Depth(full=full, rebuild=rebuild, untrusted=untrusted)
    policy_file = trusting.policy_file
    matrix_file = policy_file or chosen.matrix_file
    known = facts.load(matrix_file)
    grid = matrix.read(matrix_file, known)
    if policy_file is None:  # rootfs/ of the current folder is not trusted to say what an image contains
        grid = replace(grid, folder=None)
    active = active_policy(policy_file, matrix_file, grid)
    trust = trusting.trust(active)
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
            kinds=KINDS,
            observer=observer,
            say=console.say,
        )
        result = session.run(reference, registry, depth)
    _print(result, as_json=as_json, quiet=quiet)
    result.demand_good()
    if not as_json:
        console.echo(f"{result.digest} {result.reference}")


def is_in_layout(target: str, output: Path) -> bool:
    """Whether *target* names a layout or an image of one, and not an image in a registry."""
    return split_target(target)[0].is_dir() or bool(_TAG.fullmatch(target) and output.is_dir())


def _place(target: str | None, output: Path, chosen: CellOptions) -> tuple[Path, str | None]:
    """The layout that *target* or the selection names, and the image in it; None: all of its images."""
    if target is None:
        return output, chosen.tag("verify")
    folder, ref = split_target(target)
    if folder.is_dir() and ref is None:
        return folder, None
    found = locate(target, output, chosen, owned=False)
    return found.layout, found.ref


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
                console.echo(f"{mark:<4}{what:<12}{line}", err=True)
                mark = what = ""


def _layout(target: str, folder: Path, ref: str | None, as_json: bool, quiet: bool) -> None:
    with console.progress(quiet=quiet) as observer:
        names, faults = verify_layout(folder, ref, observer)
    if as_json:
        images = [{"ref": name, "digest": digest} for name, digest in names.items()]
        details = [{"where": fault.where, "what": fault.what} for fault in faults]
        click.echo(json.dumps({"layout": str(folder), "images": images, "faults": details}, indent=2))
    else:
        for name, digest in names.items():
            console.echo(f"{digest} {name}")
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


def published_reference(target: str) -> ImageReference:
    """*target* as a reference in a registry.

    :raises ConfigError: it is neither a reference nor a folder.
    """
    try:
        return parse_reference(target)
    except ConfigError as error:
        reason = error.message.removeprefix(f"{target}: ").removeprefix("invalid reference: ")
        raise ConfigError(
            f"{target}: no such directory, and not a registry reference ({reason})",
            hint="name a layout, DIR or DIR:TAG, or an image in a registry, REGISTRY/REPOSITORY:TAG",
        ) from None
