"""Prints the events of a smoke session on stderr, and makes the session of a command."""

from __future__ import annotations

import json
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.runtime_options import EngineLines
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.model.report import SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke import hosts
from torchkiln.smoke.session import SmokeRequest, SmokeSession, tag_in


class SmokeLines(EngineLines):
    """Prints a line for each event."""

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        if not there:
            _say(f"unpacking {tag_in(image) or image.ref} ({image.manifest[:19]})")

    def starts(self, request: SmokeRequest) -> None:
        _say(f"running the checks up to tier {request.checks.tier}, runtime {request.runtime}")

    def answered(self, report: SmokeReport) -> None:
        gpus = hosts.kinds(json.loads(report.host))
        on = f" on {gpus}" if gpus else ""
        _say(f"passed{on} at {report.when} with the same image, suite and GPUs; --force runs again")

    def unsigned_runs(self, count: int) -> None:
        runs = "1 earlier run is" if count == 1 else f"{count} earlier runs are"
        _say(f"{runs} not signed by this machine's key and not counted: run `torchkiln smoke` again")

    def not_kept(self, error: Exception) -> None:
        _say(f"warning: this run cannot be saved for later: {error}")


def session_of(chosen: CellOptions, images: Path) -> SmokeSession:
    """The session of a command."""
    store = open_cache()
    return SmokeSession(images=images, matrix=lambda: chosen.grid()[0], store=store, listener=SmokeLines())


def _say(line: str) -> None:
    click.echo(f"smoke: {line}", err=True)
