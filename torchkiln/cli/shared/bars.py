"""Draws progress bars on a terminal: one for each kind of work, and one for each large download."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from torchkiln.errors import printable
from torchkiln.model.progress import Work

_LABELS: dict[Work, str] = {
    "download": "download",
    "convert": "convert",
    "toolkit": "toolkit",
    "compress": "compress",
    "packages": "packages",
    "load": "load",
    "push": "push",
    "verify": "verify",
    "read": "read",
    "unpack": "unpack",
}
_NAMED = 20_000_000  # bytes; smaller downloads only count in the total
_NUMBERS = 46  # characters of the columns "821.2/3,100.0 MB 123.4 MB/s 0:00:12" and of a short bar
_NAME = 42  # maximum characters of a description; fewer on a narrow terminal


class _Amount(DownloadColumn):
    """The column with the bytes that are done and in all; for packages, with their numbers."""

    def render(self, task: Task) -> Text:
        if not task.fields["counts"]:
            return super().render(task)
        return Text(f"{task.completed:.0f}/{task.total or 0:.0f}", style="progress.download")


class _Speed(TransferSpeedColumn):
    """The column with the bytes per second; empty for packages."""

    def render(self, task: Task) -> Text:
        return Text() if task.fields["counts"] else super().render(task)


class Bars:
    """An observer that draws bars. rich redraws them in its own thread; this class only counts."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        width = max(min(_NAME, console.width - _NUMBERS), len("packages"))  # numbers stay whole
        kinds: tuple[type[ProgressColumn], ...] = (_Amount, _Speed, TimeRemainingColumn)
        numbers = [kind(table_column=Column(no_wrap=True)) for kind in kinds]
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=width)),
            BarColumn(None),
            *numbers,
            console=console,
            transient=True,
        )
        self._totals: dict[Work, TaskID] = {}
        self._named: dict[tuple[Work, str], TaskID] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, work: Work, name: str, total: int) -> None:
        if work == "step":
            with self._guard:
                self._named[work, name] = self._add(escape(name), None)
        if work not in _LABELS:
            return
        with self._guard:
            if work not in self._totals:
                self._totals[work] = self._add(f"[bold]{_LABELS[work]}", 0, counts=work == "packages")
            task = self._totals[work]
            grown = (self._progress.tasks[self._progress.task_ids.index(task)].total or 0) + total
            self._progress.update(task, total=grown)
            if work == "download" and total >= _NAMED:
                self._named[work, name] = self._add(escape(f"  {name[:_NAME]}"), total)

    def _add(self, description: str, total: int | None, *, counts: bool = False) -> TaskID:
        return self._progress.add_task(printable(description), total=total, counts=counts)

    def advance(self, work: Work, name: str, count: int) -> None:
        with self._guard:
            for task in (self._totals.get(work), self._named.get((work, name))):
                if task is not None:
                    self._progress.advance(task, count)

    def end(self, work: Work, name: str) -> None:
        with self._guard:
            task = self._named.pop((work, name), None)
            if task is not None:
                self._progress.remove_task(task)
