"""Listeners for smoke sessions: one ignores all messages, one records the lines."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torchkiln.model.progress import Observer, Silent
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke.session import SmokeRequest


class SilentSmokeListener:
    """A listener that ignores all messages."""

    def say(self, line: str) -> None: ...

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None: ...

    def progress(self) -> AbstractContextManager[Observer]:
        return nullcontext(Silent())

    def answered(self, report: SmokeReport) -> None: ...

    def starts(self, request: SmokeRequest) -> None: ...

    def finished(self, finding: Finding) -> None: ...

    def unsigned_runs(self, count: int) -> None: ...

    def not_kept(self, error: Exception) -> None: ...


@dataclass
class Lines(SilentSmokeListener):
    """A listener that records the lines it gets."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)
