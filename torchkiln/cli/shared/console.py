"""Prints the progress and the summary of a build on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.lines import LogLines
from torchkiln.cli.shared.program import as_typed
from torchkiln.cli.shared.tables import paragraph, table
from torchkiln.errors import KilnError
from torchkiln.model.progress import Observer, Silent
from torchkiln.store.file_locks import Holder
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.sizes import size as size  # the other commands import it from here

if TYPE_CHECKING:
    from torchkiln.build.image import BuildResult


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Observer]:
    """An observer for one task: bars on a terminal with escape sequences, else lines; nothing if *quiet*."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty() and terminal.color() is None:  # escape sequences may be written
        from torchkiln.cli.shared.bars import Bars

        with Bars() as bars:
            yield bars
    else:
        yield LogLines(say)


def say(line: str) -> None:
    """Print one line of diagnostics on stderr."""
    click.echo(f"torchkiln: {as_typed(line)}", err=True)


def open_cache(*, quiet: bool = False) -> Store:
    """The cache. Unless *quiet*, a line on stderr names the process whose lock this process waits for."""
    return Store(cache_root(), on_wait=(lambda _: None) if quiet else waiting)


def waiting(holder: Holder) -> None:
    """Print the process that this process waits for."""
    say(f"waiting for {holder}")


def summary(build: BuildResult) -> None:
    """Print the result on stderr: tag, digest, layers, time by stage."""
    image = build.image
    totals = numbers(build)
    rows = [
        (
            size(layer.blob.size),
            size(layer.blob.unpacked),
            "reused" if layer.title in build.reused else "new",
            layer.title,
        )
        for layer in image.layers
    ]
    sizes = (size(totals["compressed_bytes"]), size(totals["unpacked_bytes"]))
    rows.append((*sizes, "", f"{len(image.layers)} layers"))
    table(("size", "unpacked", "", "layer"), rows, right=(0, 1), text=(3,), err=True)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in build.seconds)
    lines = [f"time: {stages}"]
    if image.base_moved:
        lines.append(moved(image.base_moved))
    for line in lines:
        click.echo(paragraph(line, err=True), err=True)
    click.echo(f"{image.tag}: {image.manifest} in {image.layout}", err=True)


def moved(changes: Sequence[str]) -> str:
    """Why the digest is not that of the committed lock: the *changes* of the base's packages."""
    return f"the base is not the locked one, so the digest is not that of the lock: {'; '.join(changes)}"


def numbers(build: BuildResult) -> dict[str, Any]:
    """The object that `build --json` prints."""
    image = build.image
    return {
        "tag": image.tag,
        "digest": image.manifest,
        "layout": image.layout,
        "ref": image.ref,
        "layer_format": build.layer_format,
        "compressed_bytes": sum(layer.blob.size for layer in image.layers),
        "unpacked_bytes": sum(layer.blob.unpacked for layer in image.layers),
        "layers": [
            {
                "digest": layer.blob.digest,
                "diff_id": layer.blob.diff_id,
                "size": layer.blob.size,
                "unpacked": layer.blob.unpacked,
                "what": layer.title,
            }
            for layer in image.layers
        ],
        "seconds": {stage: round(seconds, 3) for stage, seconds in build.seconds},
        "reused": list(build.reused),
        "base_newer_than_lock": list(image.base_moved),
    }


def worst(failures: Sequence[KilnError], count: int, items: str) -> KilnError:
    """One error for *failures* among *count* *items* ("cells"), with the highest exit code."""
    summary = KilnError(f"{len(failures)} of {count} {items} failed", hint="see the errors above")
    summary.exit_code = max(error.exit_code for error in failures)  # type: ignore[misc]
    return summary
