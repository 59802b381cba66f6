"""Prints the events of a smoke session on stderr, and makes the session of a command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.program import as_typed
from torchkiln.cli.shared.runtime_options import EngineLines
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.tables import paragraph
from torchkiln.matrix import facts
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.smoke import hosts
from torchkiln.smoke import report as forms
from torchkiln.smoke.session import SmokeRequest, SmokeSession


class SmokeLines(EngineLines):
    """Prints a line for each event."""

    def __init__(self) -> None:
        self.printed: set[Finding] = set()  # the findings of the last run that were printed
        self._width = 0

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        if not there:
            _say(f"unpacking {tag_in(image) or image.ref} ({image.manifest[:19]})")

    def starts(self, request: SmokeRequest) -> None:
        checks = request.checks
        names = ", ".join(checks.only) or f"the checks up to tier {checks.tier}"
        self._start(names, request.runtime, [check.id for check in checks.selected])

    def starts_checks(self, names: Sequence[str], runtime: str) -> None:
        self._start(", ".join(names), runtime, names)

    def _start(self, what: str, runtime: str, ids: Sequence[str]) -> None:
        _say(f"running {what}; runtime {runtime}")
        self.printed.clear()
        self._width = forms.width_of(ids)

    def finished(self, finding: Finding) -> None:
        line = forms.to_line(finding, self._width, facts.load().reasons())
        click.echo(paragraph(line, err=True), err=True)
        self.printed.add(finding)

    def answered(self, report: SmokeReport) -> None:
        self.printed.clear()
        gpus = hosts.kinds(json.loads(report.host))
        on = f" on {gpus}" if gpus else ""
        _say(f"passed{on} at {report.when} with the same image, suite and GPUs; --force runs again")

    def unsigned_runs(self, count: int) -> None:
        runs = "1 earlier run is" if count == 1 else f"{count} earlier runs are"
        _say(f"{runs} not signed by this machine's key and not counted: run `torchkiln smoke TAG` again")

    def not_kept(self, error: Exception) -> None:
        _say(f"warning: this run cannot be saved for later: {error}")


def session_of(chosen: CellOptions, images: Path, lines: SmokeLines) -> SmokeSession:
    """The session of a command, whose events *lines* prints."""
    store = open_cache()
    return SmokeSession(images=images, matrix=lambda: chosen.grid()[0], store=store, listener=lines)


def _say(line: str) -> None:
    click.echo(f"smoke: {as_typed(line)}", err=True)
