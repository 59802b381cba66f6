"""`torchkiln sbom`: what is in an image, as SPDX or CycloneDX; or whether a document tells it truly."""

from __future__ import annotations

import time
from pathlib import Path

import click

from torchkiln.cli.shared.console import say, waiting
from torchkiln.cli.shared.options import images_folder, layout_option, matrix_option
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.matrix import facts, matrix
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.sbom.image import bill_of_image
from torchkiln.sbom.listed import LIMIT
from torchkiln.sbom.matches import items_of, matches
from torchkiln.sbom.read_image import read_evidence
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.strict_json import read_file


@click.command("sbom")
@click.argument("tag")
@click.option(
    "--format",
    "form",
    type=click.Choice(["spdx", "cyclonedx"]),
    default="spdx",
    show_default=True,
    help="SPDX 2.3 or CycloneDX 1.6, JSON both",
)
@click.option(
    "--check",
    "document",
    type=click.Path(path_type=Path, dir_okay=False),
    help="hold this document, of either format, against the image; write none",
)
@matrix_option
@images_folder
@layout_option()
def sbom(tag: str, form: str, document: Path | None, matrix_file: Path, images: Path, output: Path) -> None:
    """Print the SBOM of the image TAG of the layout: every wheel and OS package, hash, licence, package URL.

    From the lock and from what the image's layers say; a layer that was read once is not read again. Ends
    with 12 where the image is not what its lock says, or --check's document not what the image is.
    """
    store = Store(cache_root(), on_wait=waiting)
    if document is not None:
        _check(document, open_layout(output).image(tag), store)
        return
    start = time.monotonic()
    found, _, locked = image_and_lock(tag, output, images)
    name = matrix.read(matrix_file, facts.load()).repository
    bill = bill_of_image(found, locked, images, store, name=name)
    for note in bill.notes:
        say(f"sbom: {note}")
    say(f"sbom: {tag}: {len(bill.components)} components, read in {time.monotonic() - start:.1f} s")
    if form == "spdx":  # each library takes half a second to import
        from torchkiln.sbom.spdx import spdx as write
    else:
        from torchkiln.sbom.cyclonedx import cyclonedx as write
    click.echo(write(bill), nl=False)


def _check(document: Path, image: ImageOnDisk, store: Store) -> None:
    """Print the image's digest where *document* tells truly what is in it.

    :raises VerificationFailed: it does not, or cannot be read; every difference.
    """
    try:
        data = read_file(document, LIMIT)
    except OSError as error:
        raise ConfigError(f"{document}: {error.strerror}", hint="name what `sbom` wrote") from error
    items = items_of(read_evidence(image, store))
    if wrong := [f"  {one}" for one in matches(data, image.manifest, items, where=document.name)]:
        raise VerificationFailed(
            "\n".join([f"{document.name} is not what is in {image.ref}:", *wrong]),
            hint="make it anew from the image that it is about: torchkiln sbom",
        )
    say(f"{document.name}: all {len(items)} packages of {image.ref} are in it, and no others")
    click.echo(image.manifest)
