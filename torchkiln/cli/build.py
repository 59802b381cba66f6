"""`torchkiln build`: from the chosen cells to images in an OCI layout."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchkiln.cli import console
from torchkiln.cli.options import cache_root, images_folder, selection
from torchkiln.errors import KilnError, Stale, Unresolvable
from torchkiln.nouns import LayerFormat, LockedCell, LockedWheel

if TYPE_CHECKING:
    from torchkiln.engines.embedded import Build
    from torchkiln.facts import Facts
    from torchkiln.index.download import Downloads
    from torchkiln.matrix import Matrix
    from torchkiln.nouns import Cell
    from torchkiln.store import Store

_FORMATS = ("oci", "oci-archive", "docker-archive")
_LAYER_FORMATS: tuple[LayerFormat, ...] = ("gzip", "gzip-joined")


@click.command()
@selection
@images_folder
@click.option(
    "--output",
    "output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="the OCI layout to build into; several tags in it share blobs",
)
@click.option("--engine", type=click.Choice(["embedded"]), default="embedded", show_default=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="oci",
    show_default=True,
    help="besides the layout, an archive beside it: <tag>.FORMAT.tar",
)
@click.option(
    "--layer-format",
    type=click.Choice(_LAYER_FORMATS),
    default="gzip",
    show_default=True,
    help="gzip-joined: for readers that take only a layer's first gzip member; other digests, same content",
)
@click.option(
    "--base",
    "base_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="take the base from this file (made by `base export`)",
)
@click.option("--locked", is_flag=True, help="end with exit 6 when the base is not the locked one")
@click.option("--dry-run", is_flag=True, help="tell what would be done; do nothing")
@click.option("--json", "as_json", is_flag=True, help="the result as JSON on stdout")
@click.option("--quiet", "-q", is_flag=True, help="no progress, no summary")
def build(
    torch: tuple[str, ...],
    cuda: tuple[str, ...],
    flavor: tuple[str, ...],
    os_names: tuple[str, ...],
    every: bool,
    matrix_file: Path,
    images: Path,
    output: Path,
    engine: str,
    form: str,
    layer_format: LayerFormat,
    base_file: Path | None,
    locked: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build the chosen cells from their locks. stdout: each image's digest (or --json).

    Several cells go on after one failed; the exit code is then the worst of them.
    """
    from torchkiln import facts as facts_of
    from torchkiln import matrix as matrix_of
    from torchkiln.select import Selection, select

    facts = facts_of.load()
    matrix = matrix_of.read(matrix_file, facts)
    asked = Selection(torch=torch, cuda=cuda, flavor=flavor, os=os_names, every=every)
    cells = select(asked, matrix, must_name=True)
    desk = _Desk(matrix, facts, images, output.absolute(), base_file, locked, quiet, layer_format)
    failures: list[KilnError] = []
    for cell in cells:
        try:
            if dry_run:
                _tell(desk.forecast(cell), as_json)
            else:
                _report(desk.build(cell), desk, form, as_json)
        except KilnError as error:
            if len(cells) == 1:
                raise
            console.say(f"torch {cell.torch}, CUDA {cell.cuda}, {cell.flavor}, {cell.os}: {error.message}")
            failures.append(error)
    if len(cells) > 1 and as_json and not dry_run:
        codes = [error.exit_code for error in failures]
        click.echo(json.dumps({"built": len(cells) - len(failures), "failed": len(failures), "codes": codes}))
    if failures:
        worst = max(failures, key=lambda error: error.exit_code)
        raise _worst(worst, len(failures), len(cells))


def _worst(worst: KilnError, failed: int, cells: int) -> KilnError:
    """One error for a whole sweep, with the exit code of the worst."""
    summary = KilnError(f"{failed} of {cells} cells failed", hint="each one's reason stands above")
    summary.exit_code = worst.exit_code  # type: ignore[misc]
    return summary


@dataclass(frozen=True, slots=True)
class _Desk:
    """What is the same for all cells of one run."""

    matrix: Matrix
    facts: Facts
    images: Path
    layout: Path
    base_file: Path | None
    locked_only: bool
    quiet: bool
    layer_format: LayerFormat

    def locked(self, cell: Cell) -> LockedCell:
        """The cell's lock, if it still fits matrix and facts."""
        from torchkiln.index.settings import PYTORCH_VARIABLE
        from torchkiln.lock import inputs_digest, load_locked
        from torchkiln.nouns import Source
        from torchkiln.resolve import require_buildable, resolve
        from torchkiln.tags import tag_of

        resolution = resolve(cell, self.matrix, self.facts)
        source = require_buildable(resolution).source
        tag = tag_of(resolution)
        if source is Source.PYTORCH and PYTORCH_VARIABLE not in os.environ:
            raise Unresolvable(
                f"{tag}: its torch is only on PyTorch's own index, which is not configured",
                hint=f"set {PYTORCH_VARIABLE} to that index's address, then: torchkiln lock",
            )
        found = load_locked(self.images, tag)
        bound = next(
            (index.packages for index in self.matrix.indexes if index.name == Source.PYTORCH.value), ()
        )
        if found.inputs != inputs_digest(resolution, bound):
            raise Stale(
                f"the lock of {tag} was made from another matrix or other facts",
                hint=f"run: torchkiln lock --torch {cell.torch} --cuda {cell.cuda}",
            )
        return found

    def build(self, cell: Cell) -> Build:
        from torchkiln import kiln
        from torchkiln.store import Store

        store = Store(cache_root(), on_wait=(lambda _: None) if self.quiet else console.waiting)
        with console.progress(quiet=self.quiet) as observer:
            return kiln.build(
                self.locked(cell),
                self.matrix,
                self.facts,
                store=store,
                layout=self.layout,
                fetcher=_LateIndex(store),
                observer=observer,
                options=kiln.Options(
                    base_file=self.base_file, locked_only=self.locked_only, layer_format=self.layer_format
                ),
                say=(lambda line: None) if self.quiet else console.say,
            )

    def forecast(self, cell: Cell) -> dict[str, Any]:
        from torchkiln.engines.embedded import forecast
        from torchkiln.planning import plan_locked
        from torchkiln.store import Store

        plan = plan_locked(self.locked(cell), self.matrix, self.facts)
        told = forecast(plan, Store(cache_root()))
        return {"tag": plan.tag, "layer_format": self.layer_format, **told}


def _report(built: Build, desk: _Desk, form: str, as_json: bool) -> None:
    told = console.numbers(built)
    if form != "oci":
        from torchkiln.oci.archive import archive_image

        archive = archive_image(built.image, form, repository=desk.matrix.repository)  # type: ignore[arg-type]
        told["archive"] = str(archive)
    if not desk.quiet:
        console.summary(built)
        if form != "oci":
            console.say(f"archive: {told['archive']}")
    click.echo(json.dumps(told) if as_json else built.image.manifest)


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told))
        return
    click.echo(told["tag"])
    for step in told["layers"]:
        click.echo(f"  {step['do']:<8} {console.size(step['bytes']):>9}  {step['what']}")
    click.echo(f"  to download: {console.size(told['download_bytes'])} in {told['downloads']} wheels")
    if told["layer_format"] == "gzip-joined":
        click.echo("  then each layer is joined into one gzip member, but for those the cache has joined")


class _LateIndex:
    """The package index, opened when the first wheel is wanted: most builds want none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened: Downloads | None = None
        self._opening = threading.Lock()  # a dozen threads want it at once, and each would ask pip

    def _index(self) -> Downloads:
        from torchkiln.index.download import open_downloads

        with self._opening:
            if self._opened is None:
                self._opened = open_downloads(os.environ, self._store)
            return self._opened

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        return self._index().tail(wheel, count)

    def fetch(
        self,
        wheel: LockedWheel,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._index().fetch(wheel, path, on_progress=on_progress, cancelled=cancelled)
