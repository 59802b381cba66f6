"""What a person hears of runs of the suite, on stderr; and the sessions of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.runtime_options import EngineLines
from torchkiln.cli.shared.selection import Chosen
from torchkiln.model.report import SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke import hosts
from torchkiln.smoke.session import SmokeRequest, SmokeSession, tag_in
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


class SmokeLines(EngineLines):
    """A line for each event."""

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        del there
        _say(f"unpacking {tag_in(image) or image.ref} ({image.manifest[:19]}) where it is not")

    def starts(self, request: SmokeRequest) -> None:
        _say(f"checks of tier {request.checks.tier} and below, runtime {request.runtime}")

    def answered(self, report: SmokeReport) -> None:
        gpus = hosts.kinds(json.loads(report.host))
        on = f" on {gpus}" if gpus else ""
        _say(f"passed{on} at {report.when}: same image, suite and GPUs; --force runs again")

    def unsigned_runs(self, count: int) -> None:
        runs = "1 kept run is" if count == 1 else f"{count} kept runs are"
        _say(f"{runs} not signed by this machine's key and not counted: run `smoke` again")

    def not_kept(self, error: Exception) -> None:
        _say(f"this run is not kept for the next one: {error}")


def session_of(chosen: Chosen, images: Path) -> SmokeSession:
    """The session of a command."""
    store = Store(cache_root(), on_wait=waiting)
    return SmokeSession(images=images, matrix=lambda: chosen.grid()[0], store=store, listener=SmokeLines())


def _say(line: str) -> None:
    click.echo(f"smoke: {line}", err=True)
