"""Runs the smoke tests in an image that was just built, for `build --smoke`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchkiln.cli.shared.reports import show_lines
from torchkiln.cli.shared.smoke_output import SmokeLines as SmokeLines
from torchkiln.cli.shared.smoke_output import session_of as session_of
from torchkiln.model.report import SmokeReport
from torchkiln.oci.unpack import forget_root, root_of
from torchkiln.smoke.report import demand_pass as demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession
from torchkiln.smoke.suite import load_suite


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
