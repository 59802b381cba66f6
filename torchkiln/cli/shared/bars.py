"""Draws progress bars on a terminal: one for each kind of work, and one for each large download."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from torchkiln.model.progress import Work

_LABELS: dict[Work, str] = {
    "download": "download",
    "convert": "convert",
    "toolkit": "toolkit",
    "compress": "compress",
    "load": "load",
    "push": "push",
}
_NAMED = 20_000_000  # bytes; smaller downloads only count in the total


class Bars:
    """An observer that draws bars. rich redraws them in its own thread; this class only counts."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._totals: dict[Work, TaskID] = {}
        self._named: dict[tuple[Work, str], TaskID] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, work: Work, name: str, total: int) -> None:
        if work not in _LABELS:
            return
        with self._guard:
            if work not in self._totals:
                self._totals[work] = self._progress.add_task(f"[bold]{_LABELS[work]}", total=0)
            task = self._totals[work]
            grown = (self._progress.tasks[self._progress.task_ids.index(task)].total or 0) + total
            self._progress.update(task, total=grown)
            if work == "download" and total >= _NAMED:
                self._named[work, name] = self._progress.add_task(f"  {name[:40]}", total=total)

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
