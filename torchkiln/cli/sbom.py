"""`torchkiln sbom`: prints an image's SBOM as CycloneDX, or compares an SBOM with the image."""

from __future__ import annotations

import time
from pathlib import Path

import click

from torchkiln.cli.shared.console import echo, open_cache, progress, say
from torchkiln.cli.shared.image_names import NamedImage, named_image
from torchkiln.cli.shared.options import FILE, images_folder, layout_option
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import name_argument
from torchkiln.errors import VerificationFailed
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.projects.bill import bill_of_project
from torchkiln.projects.gate.read import project_image
from torchkiln.projects.smoke.account import is_project
from torchkiln.sbom.bill import Bill
from torchkiln.sbom.matches import LIMIT, items_of, matches
from torchkiln.sbom.read_image import bill_of_image, read_evidence
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.store import Store
from torchkiln.util.strict_json import read_given


@click.command("sbom")
@name_argument
@selection
@click.option(
    "--check", "document", type=FILE, help="compare this SBOM with the image instead of printing one"
)
@images_folder
@layout_option()
def sbom(name: str | None, chosen: CellOptions, document: Path | None, images: Path, output: Path) -> None:
    """Print the SBOM of the image TAG: every wheel and OS package, with hash, licence and package URL.

    It is a CycloneDX 1.6 document in JSON. The SBOM of a project's image lists the packages kept from the
    parent image, the project's own packages, and the project itself.

    It is made from the lock and the layers of the image; the next run need not read the layers again. Exits
    with 12 if the image does not match its lock, or the document of --check does not match the image.
    """
    named = named_image(name, output, chosen, command="sbom")
    store = open_cache()
    if document is not None:
        _check(document, open_layout(named.layout).image(named.ref), store)
        return
    start = time.monotonic()
    bill = _bill(named, images, store, chosen.grid()[0].repository)
    for note in bill.notes:
        say(f"sbom: {note}")
    say(f"sbom: {bill.tag}: {len(bill.components)} components, read in {time.monotonic() - start:.1f} s")
    from torchkiln.sbom.cyclonedx import cyclonedx  # its library takes half a second to import

    click.echo(cyclonedx(bill), nl=False)


def _bill(named: NamedImage, images: Path, store: Store, name: str) -> Bill:
    found = open_layout(named.layout).image(named.ref)
    if is_project(found):
        project = project_image(found, named.layout, images, store)
        with progress(quiet=False) as observer:
            return bill_of_project(project, images, store, name=name, observer=observer)
    found, _, locked = image_and_lock(named.ref, named.layout, images, store)
    with progress(quiet=False) as observer:
        return bill_of_image(found, locked, images, store, name=name, observer=observer)


def _check(document: Path, image: ImageOnDisk, store: Store) -> None:
    """Print the image's digest if *document* lists exactly what is in the image."""
    data = read_given(document, LIMIT, hint="name a file that torchkiln sbom printed")
    with progress(quiet=False) as observer:
        items = items_of(read_evidence(image, store, observer=observer))
    if wrong := [f"  {line}" for line in matches(data, image.manifest, items, where=document.name)]:
        raise VerificationFailed(
            "\n".join([f"{document.name} does not match {image.ref}:", *wrong]),
            hint=f"recreate it: torchkiln sbom {image.ref}",
        )
    say(f"{document.name} lists all {len(items)} packages of {image.ref}, and no others")
    echo(image.manifest)
