"""The image of the lock has the recorded layers and passes tier 0; the gate accepts only its reports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import torchkiln
from tests.needs import nightly
from tests.proof.conftest import build
from tests.proof.headline import TAG
from tests.proof.reports import committed_reports
from tools.kept import PROOFS
from torchkiln import CellName, Project
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof


def test_a_second_build_without_changes_makes_no_layer(image: dict[str, Any], tmp_path: Path) -> None:
    """It has the same digest."""
    again = build(Path(image["layout"]))
    assert again["digest"] == image["digest"]
    assert again["reused"] == [layer["what"] for layer in image["layers"]]


def test_the_function_builds_what_the_command_builds(image: dict[str, Any]) -> None:
    """`torchkiln.build` of the same cell, into the same layout."""
    torch, cuda, _, flavor = TAG.split("-")
    cell = CellName(torch=torch, cuda=cuda.removeprefix("cuda"), flavor=flavor)
    project = Project(matrix=ROOT / "matrix.yaml", images=ROOT / "images", layout=Path(image["layout"]))
    assert torchkiln.build(cell, project).manifest == image["digest"]


def test_the_recorded_layers_are_reproduced(image: dict[str, Any], locked: LockedCell) -> None:
    """Every build produces the layers that the first build recorded in the lock."""
    assert locked.layers, "no layers are recorded: run torchkiln lock --record"
    assert {layer.blob.digest for layer in locked.layers} <= {layer["digest"] for layer in image["layers"]}


def test_skopeo_copies_the_image(image: dict[str, Any], tmp_path: Path) -> None:
    """It checks all digests."""
    source = f"oci:{image['layout']}:{image['ref']}"
    try:
        subprocess.run(["skopeo", "copy", "--quiet", source, f"dir:{tmp_path}/copy"], check=True)
        manifest = (tmp_path / "copy" / "manifest.json").read_bytes()
    finally:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    blob = Path(image["layout"]) / "blobs" / "sha256" / image["digest"].removeprefix("sha256:")
    assert manifest == blob.read_bytes()


@nightly  # two minutes
def test_umoci_unpacks_the_image(image: dict[str, Any], tmp_path: Path) -> None:
    """It checks all diff_ids."""
    source = f"{image['layout']}:{image['ref']}"
    try:
        subprocess.run(["umoci", "unpack", "--rootless", "--image", source, f"{tmp_path}/bundle"], check=True)
        root = tmp_path / "bundle" / "rootfs" / "opt/venv/lib/python3.11/site-packages"
        assert (root / "torch" / "version.py").exists()
    finally:
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)


def test_the_validator_finds_no_fault(image: dict[str, Any]) -> None:
    from torchkiln.oci.validate.validate import validate

    assert validate(Path(image["layout"]), TAG) == ()


TIER_0 = {
    *("import", "claims", "linkage", "lock", "archs", "cpu-train", "compile-cpu", "defaults"),
    *("services", "user"),
}


def test_tier_0_passes_inside(image: dict[str, Any], unpacked: Path, tmp_path: Path) -> None:
    """Every check passes and the report has this digest; `device-code` applies to thin images only."""
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "build.py"), "smoke", "--force", "--output", image["layout"]]
    done = subprocess.run(
        [*command, "--report", str(report), image["ref"]], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    smoke_report = json.loads(report.read_bytes())
    assert smoke_report["image"] == image["digest"]
    outcomes = {check["id"]: check["outcome"] for check in smoke_report["checks"]}
    assert outcomes == {**dict.fromkeys(TIER_0, "passed"), "device-code": "not-applicable"}


def gate(image: dict[str, Any], reports: Sequence[SignedReport]) -> subprocess.CompletedProcess[str]:
    """Run the gate with *reports* and the committed keys."""
    words = [word for report in reports for word in ("--report", str(PROOFS / report.name))]
    words += [word for key in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", f"laboratory={key}")]
    argv = [sys.executable, str(ROOT / "build.py"), "gate", image["ref"], "--output", image["layout"], *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_gate_clears_the_build_with_its_reports(image: dict[str, Any]) -> None:
    """With the laboratories' keys; skipped if a check that the policy requires is missing."""
    reports = committed_reports(image, current=True)
    if not reports:
        pytest.skip(f"no committed report of {image['digest']} has every check: run the suite on GPUs")

    done = gate(image, reports)
    assert (done.returncode, done.stdout.strip()) == (0, image["digest"]), done.stderr


def test_reports_of_an_earlier_image_do_not_clear_the_build(image: dict[str, Any]) -> None:
    """Neither alone nor together: only GPU runs count, for the same GPU stack, and tier 0 did not run."""
    reports = committed_reports(image, current=False)
    if not reports:
        pytest.skip("every committed report is of this image")

    for handed in (reports, *([report] for report in reports)):
        done = gate(image, handed)
        assert (done.returncode, done.stdout) == (7, ""), done.stderr
        refused = [item for item in handed if f"{item.name}: is a report of another image: " in done.stderr]
        assert refused or "import: not run: no report contains it" in done.stderr
