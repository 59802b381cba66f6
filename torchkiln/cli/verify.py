"""`torchkiln verify`: is an image what it claims to be, in a layout or in a registry?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared.reports import NamedKey
from torchkiln.cli.shared.trust_options import policy_option, trust_options
from torchkiln.cli.shared.verify_published import Wish, published_reference, verify_published
from torchkiln.errors import ConfigError, VerificationFailed


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
    if not folder.is_dir():
        wish = Wish(
            policy_file=policy_file,
            suite_folder=suite_folder,
            keys=keys,
            identity=identity,
            issuer=issuer,
            full=full,
            rebuild=rebuild,
            untrusted=untrusted,
            plain_http=plain_http,
            as_json=as_json,
            quiet=quiet,
        )
        verify_published(published_reference(target), wish)
        return
    _verify_layout(target, folder, ref, as_json)


def _verify_layout(target: str, folder: Path, ref: str | None, as_json: bool) -> None:
    from torchkiln.oci.layout import open_layout
    from torchkiln.oci.validate.validate import validate

    if ref is not None:
        _demand(folder, ref)
    faults = validate(folder, ref)
    images = []
    if not faults:
        layout = open_layout(folder)
        names = layout.refs() if ref is None else {layout.image(ref).ref: layout.image(ref).manifest}
        images = [{"ref": name, "digest": digest} for name, digest in names.items()]
    if as_json:
        listed = [{"where": fault.where, "what": fault.what} for fault in faults]
        click.echo(json.dumps({"layout": str(folder), "images": images, "faults": listed}, indent=2))
    else:
        for image in images:
            click.echo(f"{image['digest']} {image['ref']}")
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


def _demand(folder: Path, ref: str) -> None:
    """A name that is not there is a slip of the user's, not a fault of the layout."""
    from torchkiln.oci.layout import open_layout

    try:
        layout = open_layout(folder)
        if ref not in layout.refs():
            layout.image(ref)
    except VerificationFailed:
        return  # `validate` says it, with all the rest
