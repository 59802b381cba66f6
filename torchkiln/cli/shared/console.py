"""Prints the progress and the summary of a build on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from torchkiln.errors import KilnError
from torchkiln.model.progress import Observer, Silent, Work
from torchkiln.store.file_locks import Holder
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.sizes import size as size  # the other commands import it from here

if TYPE_CHECKING:
    from torchkiln.build.image import BuildResult

_LOG_WIDTH = 140  # columns where stderr is no terminal


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Observer]:
    """An observer for one build: bars on a terminal, else a line for each layer; nothing when *quiet*."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        from torchkiln.cli.shared.bars import Bars

        with Bars() as bars:
            yield bars
    else:
        yield LogLines()


class LogLines:
    """An observer that prints a line on stderr for each finished layer."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[Work, str], int] = {}
        self._guard = threading.Lock()

    def begin(self, work: Work, name: str, total: int) -> None:
        with self._guard:
            self._sizes[work, name] = total

    def advance(self, work: Work, name: str, count: int) -> None:
        """Print nothing: a log has no bars."""

    def end(self, work: Work, name: str) -> None:
        total = self._sizes.get((work, name), 0)
        if work == "convert":
            say(f"layer {name}: {size(total)} of wheels")
        elif work == "toolkit":
            say(f"layer {name}: from {size(total)} of archives")
        elif work == "compress":
            say(f"layer {name}: {size(total)} compressed")
        elif work == "push":
            say(f"{name[:19]}: {size(total)} in the registry")
        elif work == "step":
            say(name)


def say(line: str) -> None:
    """Print one line of diagnostics on stderr."""
    click.echo(f"torchkiln: {line}", err=True)


def open_cache(*, quiet: bool = False) -> Store:
    """The cache; unless *quiet*, a line says which process is waited for."""
    return Store(cache_root(), on_wait=(lambda _: None) if quiet else waiting)


def waiting(holder: Holder) -> None:
    """Print which process this one waits for."""
    say(f"waiting for {holder}")


def summary(build: BuildResult) -> None:
    """Print the result on stderr: tag, digest, layers, time by stage."""
    from rich.console import Console
    from rich.table import Table

    image = build.image
    totals = numbers(build)
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _LOG_WIDTH)
    table = Table(box=None, pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("unpacked", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("layer", no_wrap=True, overflow="ellipsis")
    for layer in image.layers:
        origin = "reused" if layer.title in build.reused else "new"
        table.add_row(size(layer.blob.size), size(layer.blob.unpacked), origin, layer.title)
    sizes = (size(totals["compressed_bytes"]), size(totals["unpacked_bytes"]))
    table.add_row(*sizes, "", f"{len(image.layers)} layers")
    console.print(table)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in build.seconds)
    console.print(f"time: {stages}", markup=False)
    if image.base_moved:
        console.print("base newer than the lock: " + "; ".join(image.base_moved), markup=False)
    console.print(f"{image.tag}: {image.manifest} in {image.layout}", markup=False)


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
    summary = KilnError(f"{len(failures)} of {count} {items} failed", hint="see the error of each above")
    summary.exit_code = max(error.exit_code for error in failures)  # type: ignore[misc]
    return summary
