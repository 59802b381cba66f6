"""A listener for smoke sessions whose messages a test does not need."""

from __future__ import annotations

from torchkiln.model.report import Finding, SmokeReport
from torchkiln.runtimes.runtime import SilentRuntimeListener
from torchkiln.smoke.session import SmokeRequest


class SilentSmokeListener(SilentRuntimeListener):
    """A listener that ignores all messages."""

    def answered(self, report: SmokeReport) -> None: ...

    def starts(self, request: SmokeRequest) -> None: ...

    def finished(self, finding: Finding) -> None: ...

    def unsigned_runs(self, count: int) -> None: ...

    def not_kept(self, error: Exception) -> None: ...
