"""Reports of runs on this machine, in the cache: a run that would be the same need not be.

Each is signed by this machine's key, and counts only so: a file that something else put there is no run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from torchkiln.attest.machine_key import signed, verified
from torchkiln.errors import ConfigError, KilnError
from torchkiln.model.digest import Digest
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.smoke.report import from_json, to_json
from torchkiln.smoke.reuse import Question, key_of, reusable_report
from torchkiln.store.store import Store

_KIND = "smoke"
_TYPE = "application/vnd.torchkiln.kept-run+json"  # of what is signed


class KeptRunsListener(Protocol):
    """Hears of runs that do not count."""

    def unsigned_runs(self, count: int) -> None:
        """That many records in the cache are not signed by this machine's key."""

    def not_kept(self, error: Exception) -> None:
        """The run that just ended cannot be kept for the next one."""


class SilentKeptRunsListener:
    """A listener that ignores everything."""

    def unsigned_runs(self, count: int) -> None: ...

    def not_kept(self, error: Exception) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRuns:
    """The runs that the cache holds."""

    store: Store
    listener: KeptRunsListener = field(default_factory=SilentKeptRunsListener)

    def answer(self, asked: Question, at: datetime, *, days: float) -> SmokeReport | None:
        """The report of at most *days* days that stands for *asked*; None: run it."""
        return reusable_report(self._reports(), asked, at=at, days=days)

    def keep(self, report: SmokeReport) -> None:
        """Note *report*, whatever it says. A cache that takes nothing costs another run, not this one."""
        try:
            self.store.put_record(_KIND, key_of(report), signed(self.store, _TYPE, to_json(report)))
        except (KilnError, OSError) as error:
            self.listener.not_kept(error)

    def of(self, image: Digest) -> list[SignedReport]:
        """This machine's own runs in *image*, which nobody else signed."""
        return [
            SignedReport(name=f"run of {report.when}", report=report, signed=False, signers=(), own=True)
            for report in self._reports()
            if report.image == image
        ]

    def _reports(self) -> Iterator[SmokeReport]:
        """What this machine's key signed."""
        strange = 0
        for key, told in self.store.records(_KIND):
            payload = verified(self.store, _TYPE, told, where=key)
            if payload is None:
                strange += 1
                continue
            try:
                report = from_json(payload, where=key)
            except ConfigError:  # of another version
                continue
            if key_of(report) == key:
                yield report
        if strange:
            self.listener.unsigned_runs(strange)
