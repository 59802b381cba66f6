"""What was seen on GPUs is of the image that is built here, now; or of an earlier one, and then no proof."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.proof.conftest import TAG
from tools.kept import PROOFS, proofs
from torchkiln.model.report import SignedReport
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof


def kept(image: dict[str, Any], *, current: bool) -> list[SignedReport]:
    """The reports of its tag: of this very image, or of earlier ones."""
    return [
        one
        for one in proofs(PROOFS)
        if one.report.tag == TAG and (one.report.image == image["digest"]) is current
    ]


def gate(image: dict[str, Any], reports: Sequence[SignedReport]) -> subprocess.CompletedProcess[str]:
    """With *reports*, by the keys that are kept."""
    words = [word for one in reports for word in ("--report", str(PROOFS / one.name))]
    words += [word for key in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", str(key))]
    argv = [sys.executable, str(ROOT / "build.py"), "gate", image["ref"], "--output", image["layout"], *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_gate_clears_the_fresh_build_with_the_reports_of_it(image: dict[str, Any]) -> None:
    """By their keys; a skip while there is none."""
    reports = kept(image, current=True)
    if not reports:
        pytest.skip(f"no report of {image['digest']}, which a build gives: to be made again on GPUs")

    done = gate(image, reports)
    assert (done.returncode, done.stdout.strip()) == (0, image["digest"]), done.stderr


def test_reports_of_an_earlier_image_never_clear_the_fresh_build(image: dict[str, Any]) -> None:
    """Each by its own, and all together; whichever it is, is named."""
    reports = kept(image, current=False)
    if not reports:
        pytest.skip("every report that is kept is of this image")

    for handed in (reports, *([one] for one in reports)):
        done = gate(image, handed)
        assert (done.returncode, done.stdout) == (7, ""), done.stderr
        for one in handed:
            assert f"{one.name}: is a report of another image: {one.report.image}" in done.stderr
