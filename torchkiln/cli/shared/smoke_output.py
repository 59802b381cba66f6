"""Prints the events of a smoke session on stderr, and makes the session of a command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.program import as_typed
from torchkiln.cli.shared.reports import show_lines
from torchkiln.cli.shared.runtime_options import EngineLines
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.tables import paragraph
from torchkiln.matrix import facts
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import forget_root, root_of
from torchkiln.smoke import hosts
from torchkiln.smoke import report as forms
from torchkiln.smoke.report import demand_pass as demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession
from torchkiln.smoke.suite import load_suite


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


def run_checks(
    result: dict[str, Any], session: SmokeSession, lines: SmokeLines, tier: int, *, alone: bool
) -> SmokeReport:
    """Run the checks in the image of *result*, print the report, and add its summary to *result*.

    :param lines: prints the session's events.
    :param alone: only one image is built. If there are several, each unpacked image is deleted after its
        checks, because it needs twice the disk space of the compressed image.
    """
    manifest = result["digest"]
    stays = alone or root_of(session.store, manifest).is_dir()
    request = SmokeRequest(checks=Checks(suite=load_suite(), tier=tier))
    try:
        report = session.run(manifest, Path(result["layout"]), request)
    finally:
        if not stays:
            forget_root(session.store, manifest)
    show_lines(report, lines.printed)
    result["smoke"] = {
        "verdict": report.verdict,
        "checks": {finding.id: finding.outcome for finding in report.findings},
    }
    return report
