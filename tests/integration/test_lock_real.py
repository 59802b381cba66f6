"""Locks by date, and committed locks against the real index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.gridcase import FACTS
from torchkiln.index.offered import open_offered
from torchkiln.index.package_index import open_index
from torchkiln.lock.lock import load_locked, lock, requirements_txt, to_json
from torchkiln.lock.request import System, Versions
from torchkiln.matrix.add_release.compat_block import block
from torchkiln.matrix.add_release.propose import look_up
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof
IMAGES = ROOT / "images"
TAG = "2.7.1-cuda12.1-cudnn9-runtime"


def test_locked_again_with_its_versions_it_is_the_same_bytes(tmp_path: Path) -> None:
    committed = load_locked(IMAGES, TAG)
    index = open_index(os.environ, Store(tmp_path))
    again = lock(
        committed.resolution,
        index,
        System(base=committed.base),
        Versions(as_of="2999-01-01", previous=committed),
    )

    assert to_json(again) == to_json(committed)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="pip judges wheels by its own Python: run these tests by 3.11"
)
def test_pip_takes_the_requirements_with_their_hashes(tmp_path: Path) -> None:
    """The small wheels only: a dry run fetches what it checks."""
    committed = load_locked(IMAGES, TAG)
    small = {one.name for one in committed.wheels if one.size < 100_000}
    lines = requirements_txt(committed).decode().splitlines()
    file = tmp_path / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in lines if line.partition("==")[0] in small))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-cache-dir",
        "-q",
    ]
    done = subprocess.run(
        [*command, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(small) > 40
    assert done.returncode == 0, done.stderr


RAW = yaml.safe_load((ROOT / "torchkiln" / "data" / "compat.yaml").read_text())["releases"]


@pytest.mark.parametrize("version", ["2.8.0", "2.9.1", "2.10.0", "2.11.0"])
def test_the_proposal_is_the_block_of_the_facts_but_for_gpu_code(tmp_path: Path, version: str) -> None:
    told = look_up(version, open_offered(os.environ, Store(tmp_path)))
    (proposed,) = yaml.safe_load(block(told)).values()
    stands = {key: value for key, value in RAW[version].items() if key != "earlier"}

    assert told.default == FACTS.releases[version].default
    assert list(proposed["variants"]) == [stands["default"]["variant"]]
    told_by_metadata = proposed.keys() - {"variants", "index_sha256"}
    assert {key: proposed[key] for key in told_by_metadata} == {key: stands[key] for key in told_by_metadata}
    assert proposed.keys() == stands.keys()
