"""Prints progress and the summary of a build on stderr; progress is lines if no bars can be drawn."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.tables import paragraph, table
from torchkiln.cli.shared.terminal import echo as echo
from torchkiln.cli.shared.terminal import say as say
from torchkiln.errors import KilnError
from torchkiln.model.progress import Observer, Silent, Work
from torchkiln.store.file_locks import Holder
from torchkiln.store.store import Store, cache_root
from torchkiln.util.sizes import size as size

if TYPE_CHECKING:
    from torchkiln.engine.image import BuildResult

_TENTHS = 10  # maximum of lines for a task whose total is known when it begins
_SHORT_READ = 8 << 20  # bytes; fewer are read in less than a second, so no line is printed

#: The kinds of work of which one total is printed for all names, and the first words of its lines.
_COUNTED: Mapping[Work, str] = {
    "verify": "verified", "read": "read", "unpack": "unpacked", "packages": "packages configured:"
}  # fmt: skip


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Observer]:
    """An observer for one task: bars on a terminal with escape sequences, else lines; nothing if *quiet*."""
    if quiet:
        yield Silent()
    # Escape sequences may be written; a bundle has no rich.
    elif sys.stderr.isatty() and terminal.color() is None and find_spec("rich"):
        from torchkiln.cli.shared.bars import Bars

        with Bars() as bars:
            yield bars
    else:
        yield LogLines(say)


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
        echo(paragraph(line, err=True), err=True)
    echo(f"{image.tag}: {image.manifest} in {image.layout}", err=True)


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


@dataclass(slots=True)
class _Count:
    total: int = 0
    done: int = 0
    printed: int = 0  # tenths


class LogLines:
    """An observer that prints a line for each finished layer, and for each tenth of work in `_COUNTED`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._sizes: dict[tuple[Work, str], int] = {}
        self._counts: dict[Work, _Count] = {}
        self._guard = threading.Lock()

    def begin(self, work: Work, name: str, total: int) -> None:
        with self._guard:
            self._sizes[work, name] = total
            if work in _COUNTED:
                count = self._counts.setdefault(work, _Count())
                count.total += total
                count.printed = _TENTHS * count.done // max(count.total, 1)

    def advance(self, work: Work, name: str, count: int) -> None:
        if work not in _COUNTED:
            return
        with self._guard:
            found = self._counts[work]
            found.done += count
            parts = _TENTHS * found.done // max(found.total, 1)
            if parts <= found.printed or (work != "packages" and found.total < _SHORT_READ):
                return
            found.printed = parts
            shown = size if work != "packages" else str
            self._say(f"{_COUNTED[work]} {shown(found.done)} of {shown(found.total)}")

    def end(self, work: Work, name: str) -> None:
        total = self._sizes.get((work, name), 0)
        if work == "convert":
            self._say(f"layer {name}: {size(total)} of wheels")
        elif work == "toolkit":
            self._say(f"layer {name}: from {size(total)} of archives")
        elif work == "compress":
            self._say(f"layer {name}: {size(total)} compressed")
        elif work == "push":
            self._say(f"{name[:19]}: {size(total)} in the registry")
        elif work == "step":
            self._say(name)
