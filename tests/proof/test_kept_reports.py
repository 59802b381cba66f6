"""What was seen on GPUs, once, is of the image that is built here, now."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.proof.conftest import TAG
from tools.grid import PROOFS, proofs
from torchkiln.places import ROOT

pytestmark = pytest.mark.proof


def test_the_gate_clears_the_fresh_build_with_the_reports_that_are_kept(image: dict[str, Any]) -> None:
    """Those of its tag, by their keys; whichever is of another digest is named."""
    kept = [one for one in proofs(PROOFS) if one.report.tag == TAG]
    stale = {one.name: one.report.image for one in kept if one.report.image != image["digest"]}
    assert kept
    assert not stale, f"to be made again on GPUs, for a build gives {image['digest']}"

    words = [word for one in kept for word in ("--report", str(PROOFS / one.name))]
    words += [word for key in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", str(key))]
    argv = [sys.executable, str(ROOT / "build.py"), "gate", image["ref"], "--output", image["layout"], *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, image["digest"]), done.stderr
