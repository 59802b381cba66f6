#!/usr/bin/env python3
"""Run tier 0 in the locked images in dist/, and write the reports to docs/proofs/*-tier0.json.

    python build.py --all && .venv/bin/python tools/tier0.py [TAG ...] && .venv/bin/python tools/readme.py

Only images that match their committed locks are tested; for others the reason is printed. Without TAG, images
with a signed report of tier 0 are skipped, too. If the checks passed on this machine within the policy's
`age`, they are not repeated. Exits with the highest exit code of the runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.rows_json import rows_json  # noqa: E402
from tools.kept import IMAGES, PROOFS, present, proofs  # noqa: E402
from torchkiln.errors import KilnError  # noqa: E402
from torchkiln.locks.lock import load_locked  # noqa: E402
from torchkiln.matrix.pick import suffix_of  # noqa: E402
from torchkiln.model.digest import Digest  # noqa: E402
from torchkiln.oci.layout import open_layout  # noqa: E402
from torchkiln.util.files import write_atomic  # noqa: E402


def report_path(tag: str) -> Path:
    """The path of the report of *tag*; an older report of the same tag is replaced."""
    cell = load_locked(IMAGES, tag).resolution.cell
    flavor = "" if cell.flavor == "runtime" else f"-{cell.flavor}"
    return PROOFS / f"{cell.torch}-cuda{cell.cuda}{flavor}{suffix_of(cell)}-{cell.os}-tier0.json"


def why_not(expected: Digest | None, present: Digest | None) -> str:
    """Why an image is not tested; empty if it matches its lock."""
    if expected is None:
        return "its lock has no recorded layers: build it, then run `python build.py lock --record`"
    if present is None:
        return "not in dist/: build it"
    if present == expected:
        return ""
    return f"dist/ has {present[:19]}, its lock gives {expected[:19]}: build it again"


def signed_here() -> set[str]:
    """The tags whose current image has a signed report of tier 0."""
    reports = (signed.report for signed in proofs(PROOFS))
    return {
        report.tag
        for report in reports
        if report.tag
        and report.image == present(report.tag)
        and any(found.tier == 0 and found.outcome == "passed" for found in report.findings)
    }


def main(tags: Sequence[str]) -> int:
    """Run tier 0 in each image; returns the highest exit code."""
    worst = 0
    locked = {path.parent.name for path in IMAGES.glob("*/lock.json")}
    for tag in tags or sorted(locked - signed_here()):
        try:
            manifest = open_layout(ROOT / "dist").image(tag).manifest
        except KilnError:
            manifest = None
        if reason := why_not(present(tag), manifest):
            sys.stderr.write(f"{tag}: skipped: {reason}\n")
            worst = max(worst, 1 if tags else 0)
            continue
        report = report_path(tag)
        argv = ["build.py", "smoke", "run", tag, "--tier", "0", "--report", str(report)]
        worst = max(worst, subprocess.run([sys.executable, *argv], cwd=ROOT, check=False).returncode)
        if report.is_file():
            write_atomic(report, rows_json(json.loads(report.read_bytes())))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
