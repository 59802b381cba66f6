#!/usr/bin/env python3
"""The locked images in dist/ → docs/proofs/*-tier0.json: each was built, and what passed there.

    python build.py --all && .venv/bin/python tools/tier0.py && .venv/bin/python tools/readme.py

Only an image that is what its committed lock gives today is run; of any other a line says why not. A run
that passed here within the policy's `age` is not made again. TAGs choose; none: all. Ends with the runs'
worst code.
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
from tools.kept import IMAGES, PROOFS, present  # noqa: E402
from torchkiln.errors import KilnError  # noqa: E402
from torchkiln.matrix.tags import parse_name  # noqa: E402
from torchkiln.model.digest import Digest  # noqa: E402
from torchkiln.oci.layout import open_layout  # noqa: E402
from torchkiln.util.files import write_atomic  # noqa: E402


def report_path(tag: str) -> Path:
    """Where the report of *tag* is kept; another image's of the same tag is written over."""
    named = parse_name(tag)
    assert named is not None, tag
    flavor = "" if named.flavor == "runtime" else f"-{named.flavor}"
    return PROOFS / f"{named.torch}-cuda{named.cuda}{flavor}-{named.os}-tier0.json"


def why_not(wanted: Digest | None, there: Digest | None) -> str:
    """Why an image is not run; empty: it is the one that its lock gives."""
    if wanted is None:
        return "its lock has no recorded layers: build it, then `python build.py lock --record`"
    if there is None:
        return "not in dist/: build it"
    return "" if there == wanted else f"dist/ has {there[:19]}, its lock gives {wanted[:19]}: build it again"


def main(tags: Sequence[str]) -> int:
    """Run tier 0 in each; the worst exit code."""
    worst = 0
    for tag in tags or sorted(path.parent.name for path in IMAGES.glob("*/lock.json")):
        try:
            there = open_layout(ROOT / "dist").image(tag).manifest
        except KilnError:
            there = None
        if reason := why_not(present(tag), there):
            sys.stderr.write(f"{tag}: left out: {reason}\n")
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
