"""The same lock, twice, in two folders with cold caches: the same image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import torchkiln
from tests.proof.conftest import TAG, build
from torchkiln import CellName, Project
from torchkiln.model.lock import LockedCell
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof


def test_a_cold_cache_gives_the_same_image(image: dict[str, Any], tmp_path: Path) -> None:
    """Nothing but the base is taken over: every wheel is downloaded, converted and compiled anew."""
    base = Store(cache_root()).blob(image["layers"][0]["digest"])
    again = build(tmp_path / "elsewhere", *_base_of(image, base), cache=tmp_path / "cold")
    try:
        assert again["reused"] == [layer["what"] for layer in again["layers"] if "base" in layer["what"]] + [
            again["layers"][-1]["what"]
        ]
        assert again["layers"] == image["layers"]
        assert again["digest"] == image["digest"]
    finally:
        shutil.rmtree(tmp_path / "cold")
        shutil.rmtree(tmp_path / "elsewhere")


def _base_of(image: dict[str, Any], base: Path) -> tuple[str, ...]:
    """`--base` takes the locked base only; one that is newer than the lock is built again, the same day."""
    return () if image["base_newer_than_lock"] else ("--base", str(base))


def test_nothing_changed_costs_nothing(image: dict[str, Any], tmp_path: Path) -> None:
    """A second build makes no layer and gives the same digest."""
    again = build(Path(image["layout"]))
    assert again["digest"] == image["digest"]
    assert again["reused"] == [layer["what"] for layer in image["layers"]]


def test_the_function_builds_what_the_command_builds(image: dict[str, Any]) -> None:
    """`torchkiln.build` of the same cell, into the same layout."""
    torch, cuda, _, flavor = TAG.split("-")
    cell = CellName(torch=torch, cuda=cuda.removeprefix("cuda"), flavor=flavor)
    project = Project(matrix=ROOT / "matrix.yaml", images=ROOT / "images", layout=Path(image["layout"]))
    assert torchkiln.build(cell, project).manifest == image["digest"]


def test_the_recorded_layers_are_these(image: dict[str, Any], locked: LockedCell) -> None:
    """What the lock recorded when it was first built, every build gives."""
    assert locked.layers, "no layers are recorded: run torchkiln lock --record"
    if not image["base_newer_than_lock"]:
        assert {layer.blob.digest for layer in locked.layers} <= {
            layer["digest"] for layer in image["layers"]
        }


def test_other_programs_accept_the_image(image: dict[str, Any], tmp_path: Path) -> None:
    """skopeo copies it, umoci unpacks it; both check digests and diff_ids on the way."""
    source = f"{image['layout']}:{image['ref']}"
    try:
        subprocess.run(["skopeo", "copy", "--quiet", f"oci:{source}", f"dir:{tmp_path}/copy"], check=True)
        manifest = (tmp_path / "copy" / "manifest.json").read_bytes()
        blob = Path(image["layout"]) / "blobs" / "sha256" / image["digest"].removeprefix("sha256:")
        assert manifest == blob.read_bytes()
        shutil.rmtree(tmp_path / "copy")
        subprocess.run(["umoci", "unpack", "--rootless", "--image", source, f"{tmp_path}/bundle"], check=True)
        root = tmp_path / "bundle" / "rootfs" / "opt/venv/lib/python3.11/site-packages"
        assert (root / "torch" / "version.py").exists()
    finally:
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)


def test_the_validator_finds_no_fault(image: dict[str, Any]) -> None:
    from torchkiln.oci.validate.validate import validate

    assert validate(Path(image["layout"]), TAG) == ()
