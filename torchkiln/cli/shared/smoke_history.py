"""Reports of runs on this machine, in the cache: a run that would be the same need not be.

Each is signed by this machine's key, and counts only so: a file that something else put there is no run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.errors import ConfigError, KilnError

if TYPE_CHECKING:
    from torchkiln.model.digest import Digest
    from torchkiln.model.report import SignedReport, SmokeReport
    from torchkiln.smoke.reuse import Question
    from torchkiln.store.store import Store

_KIND = "smoke"
_TYPE = "application/vnd.torchkiln.kept-run+json"  # of what is signed


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What the cache has, and for how many days it counts."""

    store: Store
    days: float

    def answer(self, asked: Question, at: datetime) -> SmokeReport | None:
        """The report that stands for *asked*, told on stderr; None: run it."""
        from torchkiln.smoke import hosts
        from torchkiln.smoke.reuse import reusable_report

        found = reusable_report(_reports(self.store), asked, at=at, days=self.days)
        if found:
            gpus = hosts.kinds(json.loads(found.host))
            on = f" on {gpus}" if gpus else ""
            click.echo(
                f"smoke: passed{on} at {found.when}: same image, suite and GPUs; --force runs again", err=True
            )
        return found

    def keep(self, report: SmokeReport) -> None:
        """Note *report*, whatever it says. A cache that takes nothing costs another run, not this one."""
        from torchkiln.attest.machine_key import signed
        from torchkiln.smoke.report import to_json
        from torchkiln.smoke.reuse import key_of

        try:
            self.store.put_record(_KIND, key_of(report), signed(self.store, _TYPE, to_json(report)))
        except (KilnError, OSError) as error:
            click.echo(f"smoke: this run is not kept for the next one: {error}", err=True)


def own_runs(store: Store, image: Digest) -> list[SignedReport]:
    """This machine's own runs in *image*, as witnesses that nobody else signed."""
    from torchkiln.model.report import SignedReport

    return [
        SignedReport(name=f"run of {report.when}", report=report, signed=False, signers=(), own=True)
        for report in _reports(store)
        if report.image == image
    ]


def _reports(store: Store) -> Iterator[SmokeReport]:
    """What this machine's key signed; of anything else one line is told."""
    from torchkiln.attest.machine_key import verified
    from torchkiln.smoke.report import from_json
    from torchkiln.smoke.reuse import key_of

    strange = 0
    for key, told in store.records(_KIND):
        payload = verified(store, _TYPE, told, where=key)
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
        runs = "1 kept run is" if strange == 1 else f"{strange} kept runs are"
        click.echo(
            f"smoke: {runs} not signed by this machine's key and not counted: run `smoke` again", err=True
        )


def kept(store: Store, matrix_file: Path) -> Kept:
    """As the policy in *matrix_file* says."""
    from torchkiln.matrix import facts, matrix

    return Kept(store=store, days=matrix.read(matrix_file, facts.load()).policy.age)
