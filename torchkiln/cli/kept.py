"""Reports of runs that passed, in the cache: a run that would be the same need not be."""

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
    from torchkiln.nouns import Digest, SmokeReport, Witness
    from torchkiln.reuse import Question
    from torchkiln.store import Store

_KIND = "smoke"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What the cache has, and for how many days it counts."""

    store: Store
    days: float

    def answer(self, asked: Question, at: datetime) -> SmokeReport | None:
        """The report that stands for *asked*, told on stderr; None: run it."""
        from torchkiln import hosts
        from torchkiln.reuse import standing

        found = standing(_reports(self.store), asked, at=at, days=self.days)
        if found:
            gpus = hosts.kinds(json.loads(found.host))
            on = f" on {gpus}" if gpus else ""
            click.echo(
                f"smoke: passed{on} at {found.when}: same image, suite and GPUs; --force runs again", err=True
            )
        return found

    def keep(self, report: SmokeReport) -> None:
        """Note *report*, whatever it says. A cache that takes nothing costs another run, not this one."""
        from torchkiln.report import document
        from torchkiln.reuse import key_of

        try:
            self.store.put_record(_KIND, key_of(report), document(report))
        except (KilnError, OSError) as error:
            click.echo(f"smoke: this run is not kept for the next one: {error}", err=True)


def own_runs(store: Store, image: Digest) -> list[Witness]:
    """This machine's own runs in *image*, as witnesses that nobody signed."""
    from torchkiln.nouns import Witness

    return [
        Witness(name=f"run of {report.when}", report=report, signed=False, signers=(), own=True)
        for report in _reports(store)
        if report.image == image
    ]


def _reports(store: Store) -> Iterator[SmokeReport]:
    from torchkiln.report import from_document

    for key, told in store.records(_KIND):
        try:
            yield from_document(told, where=key)
        except ConfigError:  # of another version
            continue


def kept(store: Store, matrix_file: Path) -> Kept:
    """As the policy in *matrix_file* says."""
    from torchkiln import facts, matrix

    return Kept(store=store, days=matrix.read(matrix_file, facts.load()).policy.age)
