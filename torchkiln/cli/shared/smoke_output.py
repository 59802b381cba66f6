"""Prints the events of a smoke session on stderr, and runs the session after a build."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.reports import show_lines
from torchkiln.cli.shared.runtime_options import EngineLines
from torchkiln.cli.shared.tables import paragraph
from torchkiln.errors import BuildFailed, KilnError, SmokeFailed, SmokeInconclusive, ToolMissing
from torchkiln.matrix import facts
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes.image_root import converted, discard, is_ready
from torchkiln.smoke import hosts
from torchkiln.smoke import report as forms
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession, tier_here
from torchkiln.smoke.suite import load_suite

if TYPE_CHECKING:
    from torchkiln.cli.shared.context import BuildContext  # imports packages that a bundle does not have
    from torchkiln.projects.build import ProjectSource


say = partial(terminal.say, of="smoke")


class SmokeLines(EngineLines):
    """Prints a line for each event; if *quiet*, only warnings. *again*: how to run the checks again."""

    def __init__(self, *, quiet: bool = False, again: str = "--force") -> None:
        self._quiet, self.again = quiet, again
        self.printed: set[Finding] = set()  # the findings of the last run that were printed
        self._width = 0

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        if not there:
            self._say(f"unpacking {tag_in(image) or image.ref} ({image.manifest[:19]})")

    def starts(self, request: SmokeRequest) -> None:
        checks = request.checks
        names = ", ".join(checks.only) or f"the checks up to tier {checks.tier}"
        self._start(names, request.runtime, [check.id for check in checks.selected])

    def starts_checks(self, names: Sequence[str], runtime: str) -> None:
        self._start(", ".join(names), runtime, names)

    def _start(self, what: str, runtime: str, ids: Sequence[str]) -> None:
        self._say(f"running {what}; runtime {runtime}")
        self.printed.clear()
        self._width = forms.width_of(ids)

    def finished(self, finding: Finding) -> None:
        if self._quiet:
            return
        line = forms.to_line(finding, self._width, facts.load().reasons())
        terminal.echo(paragraph(line, err=True), err=True)
        self.printed.add(finding)

    def answered(self, report: SmokeReport) -> None:
        self.printed.clear()
        gpus = hosts.kinds(json.loads(report.host))
        on = f" on {gpus}" if gpus else ""
        self._say(f"passed{on} at {report.when} with the same image, suite and GPUs; {self.again} runs again")

    def unsigned_runs(self, count: int) -> None:
        runs = "1 earlier run is" if count == 1 else f"{count} earlier runs are"
        say(f"{runs} not signed by this machine's key and not counted: run `torchkiln smoke TAG` again")

    def not_kept(self, error: Exception) -> None:
        say(f"warning: this run cannot be saved for later: {error}")

    def _say(self, line: str) -> None:
        if not self._quiet:
            say(line)


@dataclass(frozen=True, slots=True)
class BuildSmoke:
    """The checks that `build` runs in the images that it built: those that this host can run."""

    context: BuildContext
    demanded: bool  # it is an error if this host cannot run them
    tier: int | None = None  # the highest tier; None: see `tier_here`

    def of_cell(self, result: dict[str, Any], cell: Cell, *, alone: bool) -> KilnError | None:
        """Run the checks in the image of *result*, and add the verdict to *result*; returns the error.

        If it is not *alone*, its copy in the cache, larger than the image, is deleted afterwards.
        """
        context, store, digest, tier = self.context, self.context.store(), result["digest"], self.tier
        matrix, image = context.matrix, open_layout(Path(result["layout"])).image(digest)
        stays, before = alone or is_ready(image, store), converted(image, store)
        if tier is None:
            tier = tier_here(matrix.policy.of(resolve(cell, matrix, context.facts)))
        lines = SmokeLines(quiet=context.quiet, again=f"torchkiln smoke {result['tag']} --force")
        session = SmokeSession(images=context.images, matrix=lambda: matrix, store=store, listener=lines)
        request = SmokeRequest(checks=Checks(suite=load_suite(), tier=tier))
        try:
            return self._tested(result, lines, lambda: session.run(digest, Path(result["layout"]), request))
        finally:
            if not stays:
                discard(image, store, but=before)

    def of_project(self, result: dict[str, Any], source: ProjectSource) -> KilnError | None:
        """As `of_cell`, with the checks of a project, on this host's GPUs if it has any."""
        from torchkiln.projects.smoke.session import ProjectChecks, check_project

        store, matrix, layout = self.context.store(), self.context.matrix, Path(result["layout"])
        checks = ProjectChecks(gpus="all" if tier_here(Policy()) else None)
        lines = SmokeLines(quiet=self.context.quiet, again=f"torchkiln project smoke {source.folder}")

        def run() -> SmokeReport:
            repository, days = (lambda: matrix.repository), matrix.policy.age
            return check_project(source, layout, checks, store, lines, repository, days=days)

        return self._tested(result, lines, run)

    def _tested(
        self, result: dict[str, Any], lines: SmokeLines, run: Callable[[], SmokeReport]
    ) -> KilnError | None:
        try:
            report = run()
            if lines.printed or report.verdict != "pass":
                show_lines(report, lines.printed)
            checks = {finding.id: finding.outcome for finding in report.findings}
            result["smoke"] = {"verdict": report.verdict, "checks": checks}
            forms.demand_pass(report)
        except SmokeFailed as error:
            return error
        except (ToolMissing, BuildFailed, SmokeInconclusive) as error:  # no namespaces, pytest or disk space
            result.setdefault("smoke", {"verdict": None, "why": error.message})
            if self.demanded:
                return error
            say(f"not tested: {error.message}")
            say("the image is complete, but `torchkiln gate` refuses it until its checks pass")
            say(f"hint: {error.hint or 'use another host'}; then: {lines.again}")
        return None
