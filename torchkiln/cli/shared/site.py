"""Writes the catalogue of `ls --site`: reads locks and reports, renders, and replaces the folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from torchkiln.cli.shared.console import say, size
from torchkiln.cli.shared.options import FOLDER, images_folder, options
from torchkiln.errors import printable
from torchkiln.gate.kept_reports import kept_reports, locks_in
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.publishing.catalog import CatalogEntry
from torchkiln.site.catalogue import Published
from torchkiln.site.folder import demand_replaceable, write_folder
from torchkiln.site.images import catalogue, read_records
from torchkiln.site.pages import render
from torchkiln.smoke.suite import load_suite

_PROOFS = Path("docs/proofs")


def _proofs() -> Path | None:
    """docs/proofs of the current folder if it exists, else the one beside the matrix, else none."""
    context = click.get_current_context(silent=True)
    matrix: Path | None = context.params.get("matrix_file") if context else None
    folders = (_PROOFS, *([matrix.parent / _PROOFS] if matrix else []))
    return next((folder for folder in folders if folder.is_dir()), None)


site_options = options(
    click.option("--site", type=FOLDER, metavar="DIR", help="write a catalogue as static pages to DIR"),
    images_folder,
    click.option(
        "--proofs",
        type=FOLDER,
        default=_proofs,
        show_default="docs/proofs, if it exists",
        help="with --site: the folder of smoke reports, and of the public keys that signed them",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteFolders:
    """The folders of a catalogue: where it is written, and what it is made from."""

    site: Path
    images: Path
    proofs: Path | None


def write_site(
    folders: SiteFolders,
    matrix: Matrix,
    facts: Facts,
    *,
    registry: str = "",
    published: Sequence[CatalogEntry] = (),
) -> None:
    """Write the catalogue, and print its folder.

    :param registry: the named repository, and its images; empty if none was named.
    :raises ConfigError: the folder has files that do not belong to a catalogue.
    :raises NothingSelected: no lock can be listed.
    :raises VerificationFailed: the signature of a report is invalid.
    """
    demand_replaceable(folders.site)
    locks = LockFolder(folders.images, matrix, facts)
    kept = kept_reports(folders.proofs) if folders.proofs else ()
    earlier = locks_in(folders.proofs) if folders.proofs else {}
    records = read_records(locks, [each.signed for each in kept], lambda line: say(printable(line)), earlier)
    in_registry = {
        tag: Published(digest=entry.digest, notices=entry.notices, retracted=bool(entry.retracted))
        for entry in published
        for tag in entry.tags
    }
    listed = catalogue(records, matrix, facts, load_suite(), registry=registry, published=in_registry)
    tags = {image.tag for image in listed.images}
    beside = dict(file for each in kept if each.signed.report.tag in tags for file in each.files)
    files = render(listed, facts, beside)
    write_folder(folders.site, files)
    say(f"images: {len(tags)}; files: {len(files)}, {size(sum(map(len, files.values())))}")
    click.echo(folders.site)
