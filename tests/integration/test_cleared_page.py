"""The shortest path to a cleared image in docs/deploy.md, as printed: keys, smoke, gate, publish.

The checkout has only one small, generated image. Its suite has checks of tier 0, which can run in this image,
and its policy requires only these checks. Reports, signatures and the gate are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docker.scene import TAG, Scene
from tests.engine.registry import RunningRegistry
from tests.programs import run_program
from tests.smoke_suites import suite_with
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # the base, and pip's wheel, where the cache has none

PAGE = ROOT / "docs/deploy.md"
BLOCK = re.compile(r"### The shortest path to a cleared image\n.*?```sh\n(.*?)```", re.DOTALL)
CHECKS = """
VALUES = {"import": {"prefix": {"equals": "/opt/venv"}}}

@pytest.mark.tier(0)
def test_import(measure):
    import sys
    measure("prefix", sys.prefix)
"""
POLICY = {"tiers: [0, 1]": "tiers: [0]", "checks: [nccl-all-reduce]": "checks: []"}


@pytest.fixture
def checkout(scene: Scene, tmp_path: Path) -> Path:
    """A checkout, with `torchkiln` in its folder `bin`."""
    for name in ("torchkiln", "rootfs", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build.py", tmp_path)
    shutil.copytree(scene.images, tmp_path / "images")
    matrix = (ROOT / "matrix.yaml").read_text()
    for old, new in POLICY.items():
        assert old in matrix
        matrix = matrix.replace(old, new, 1)
    (tmp_path / "matrix.yaml").write_text(matrix)
    suite_with(tmp_path / "smoke_tests", {"test_all.py": CHECKS})
    command = tmp_path / "bin/torchkiln"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {ROOT}/.venv/bin/python {tmp_path}/build.py "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(script: str, checkout: Path, scene: Scene) -> subprocess.CompletedProcess[str]:
    settings = {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "TORCHKILN_KEY_PASSPHRASE": "a pass phrase",
        "DOCKER_CONFIG": str(checkout / "docker"),
    }
    return run_program(["sh", "-eu", "-c", script], cwd=checkout, env=scene.settings(**settings))


def test_the_block_clears_and_publishes_the_image(
    scene: Scene, checkout: Path, registry: RunningRegistry
) -> None:
    found = BLOCK.search(PAGE.read_text())
    assert found
    script = found[1].replace("registry.example:5000", registry.host)
    done = run(script, checkout, scene)

    assert done.returncode == 0, done.stderr
    digest = json.loads((checkout / "report.json").read_text())["image"]
    assert f"{registry.host}/team/pytorch@{digest}\n" in done.stdout
    assert f"gate: {TAG}: 1 checks passed" in done.stderr
    assert "signed by" in done.stderr
    ended = re.findall(r"^passed +import +[0-9.]+ s +prefix /opt/venv$", done.stderr, re.MULTILINE)
    assert len(ended) == 1, done.stderr  # printed when it ended, and not again

    other = "openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out other.pub.pem\n"
    refused = run(other + f"torchkiln gate {TAG} --report report.json --trust other.pub.pem", checkout, scene)
    assert refused.returncode != 0, refused.stdout
