"""`build --smoke`: the checks in an image that was just built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchkiln.cache.prune import forget_root
from torchkiln.cli.shared.reports import show_lines
from torchkiln.cli.shared.smoke_output import session_of as session_of
from torchkiln.model.report import SmokeReport
from torchkiln.oci.unpack import root_of
from torchkiln.smoke.report import demand_pass as demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession
from torchkiln.smoke.suite import load_suite


def checked(told: dict[str, Any], session: SmokeSession, tier: int, *, alone: bool) -> SmokeReport:
    """The report on the image that was built, shown and noted in what --json prints.

    Of several images none stays unpacked that was not so before: each takes twice its compressed size.
    """
    manifest = told["digest"]
    stays = alone or root_of(session.store, manifest).is_dir()
    request = SmokeRequest(checks=Checks(suite=load_suite(), tier=tier))
    try:
        report = session.run(manifest, Path(told["layout"]), request)
    finally:
        if not stays:
            forget_root(session.store, manifest)
    show_lines(report)
    told["smoke"] = {
        "verdict": report.verdict,
        "checks": {finding.id: finding.outcome for finding in report.findings},
    }
    return report
