"""Keep the reports of this machine's runs in the cache, so that an identical run need not be repeated.

Each report is signed by this machine's key; reports without that signature are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from torchkiln.attest.machine_key import signed, verified
from torchkiln.errors import ConfigError, KilnError
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.smoke.report import from_json, to_json
from torchkiln.smoke.reuse import Question, key_of, reusable_report
from torchkiln.store.store import Store

_KIND = "smoke"
_TYPE = "application/vnd.torchkiln.kept-run+json"  # payload type


class KeptRunsListener(Protocol):
    """Receives messages about the reports of earlier runs that are kept in the cache."""

    def answered(self, report: SmokeReport) -> None:
        """No check runs, because the kept *report* answers the request."""

    def unsigned_runs(self, count: int) -> None:
        """*count* records in the cache are not signed by this machine's key."""

    def not_kept(self, error: Exception) -> None:
        """The report of the last run cannot be stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRuns:
    """The reports of this machine's runs, which are kept in the cache *store*."""

    store: Store
    listener: KeptRunsListener | None = None

    def answer(self, question: Question, at: datetime, *, days: float) -> SmokeReport | None:
        """The report that can replace the run *question* at the time *at*, see `reusable_report`; or None."""
        return reusable_report(self._reports(), question, at=at, days=days)

    def keep(self, report: SmokeReport) -> None:
        """Store *report*, whatever its verdict. If that fails, call the listener and raise nothing."""
        try:
            self.store.put_record(_KIND, key_of(report), signed(self.store, _TYPE, to_json(report)))
        except (KilnError, OSError) as error:
            if self.listener:
                self.listener.not_kept(error)

    def all(self) -> list[SignedReport]:
        """The reports of this machine's runs, in any image."""
        return [
            SignedReport(name=f"run of {report.when}", report=report, signed=False, signers=(), own=True)
            for report in self._reports()
        ]

    def _reports(self) -> Iterator[SmokeReport]:
        """The reports that this machine's key signed."""
        unsigned = 0
        for key, record in self.store.records(_KIND):
            payload = verified(self.store, _TYPE, record, where=key)
            if payload is None:
                unsigned += 1
                continue
            try:
                report = from_json(payload, where=key)
            except ConfigError:  # a report of another version of torchkiln
                continue
            if key_of(report) == key:
                yield report
        if unsigned and self.listener:
            self.listener.unsigned_runs(unsigned)
