"""`torchkiln verify`: is a layout what it claims to be?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.errors import ConfigError, VerificationFailed


@click.command("verify")
@click.argument("target", metavar="DIR[:REF]")
@click.option("--json", "as_json", is_flag=True, help="one object on stdout: images, faults")
def verify(target: str, as_json: bool) -> None:
    """Compute every digest, size and diff_id of an OCI layout anew and look at every file in its layers.

    Prints digest and name of each sound image; ends with exit 12 and every fault where there is one.
    """
    from torchkiln.oci.layout import open_layout
    from torchkiln.oci.validate import validate

    folder, ref = split_target(target)
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder", hint="verify takes the layout that `build` prints: DIR[:REF]"
        )
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
