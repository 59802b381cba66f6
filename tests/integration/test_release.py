"""`make release` for real, but for the GPUs: the gate, a registry, and verification from it alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.engine.registry import RunningRegistry
from tests.keys import STRANGER, public_pem
from tests.planned import locked
from tests.press import Press, press
from tests.reports import TAG, found
from torchkiln.lock.lock import inputs_digest
from torchkiln.oci.layout import open_layout
from torchkiln.util.places import ROOT


@pytest.fixture
def desk(tmp_path: Path) -> Press:
    """A checkout whose only image is small, whose suite is small, and whose image is built."""
    for name in (".github", "torchkiln", "rootfs", "templates", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "build.py", "matrix.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    made = press(tmp_path)
    cell = locked()
    fresh = replace(
        cell, inputs=inputs_digest(cell.resolution, ())
    )  # the lock's, by this matrix and these facts
    with patch("tests.cells.locked", lambda: fresh):
        made.build()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text('#!/bin/sh\necho "docker $*" >> docker.log\n')
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "stranger.pem").write_bytes(public_pem(STRANGER))
    made.suite.rename(tmp_path / "smoke_tests")
    (tmp_path / "suite").symlink_to("smoke_tests")
    (tmp_path / "reports").mkdir()
    return made


def release(desk: Press, to: str) -> subprocess.CompletedProcess[str]:
    """`make release`, the reports in reports/, signed by the laboratory."""
    variables = [
        f"TO={to}",
        "KEY=publisher.pem",
        "REPORTS=reports",
        "TRUST=lab.pub.pem",
    ]
    return subprocess.run(
        ["make", "--silent", "--old-file=.venv/.ready", "release", *variables],
        cwd=desk.folder,
        env={**os.environ, **desk.environ, "PYTHONPATH": str(desk.folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def gated(desk: Press, image: str, *keys: str) -> subprocess.CompletedProcess[str]:
    """Another repository's gate: a script of its own in *image*, for which *keys* vouch; no real `docker`."""
    told = {"IMAGE": image, "SCRIPT": "python train.py", "GPUS": "all", "SHM_SIZE": "8g"}
    told |= {"KEYS": "\n".join(keys), "IDENTITY": "", "ISSUER": ""}
    return subprocess.run(
        [desk.folder / ".github/actions/torch-gate/gate.sh"],
        cwd=desk.folder,
        env={
            **os.environ,
            **desk.environ,
            **told,
            "PATH": f"{desk.folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(desk.folder),
            "TORCHKILN_CACHE": str(desk.folder / "empty"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def tags(registry: RunningRegistry, name: str) -> set[str]:
    """As the registry lists them, but for those under which referrers hang."""
    with urllib.request.urlopen(f"http://{registry.host}/v2/{name}/tags/list", timeout=300) as answer:
        return {name for name in json.loads(answer.read())["tags"] if not name.startswith("sha256-")}


def test_what_was_proved_elsewhere_is_released_and_verified(registry: RunningRegistry, desk: Press) -> None:
    image = open_layout(desk.layout).image(TAG)
    desk.signed(desk.report(image), "reports/report.dsse.json")
    done = release(desk, f"{registry.host}/team/released")

    assert done.returncode == 0, done.stderr
    assert f"{registry.host}/team/released@{image.manifest}\n" in done.stdout
    assert done.stderr.splitlines()[-1] == f"release: {TAG}: published and verified"
    assert {TAG, "2.7-cuda12.1-runtime", "v2.7"} < tags(registry, "team/released")

    name = f"{registry.host}/team/released@{image.manifest}"
    refused = gated(desk, name, "stranger.pem")
    assert (refused.returncode, (desk.folder / "docker.log").exists()) == (12, False), refused.stderr
    let = gated(desk, name, "publisher.pub.pem", "lab.pub.pem")
    assert let.returncode == 0, let.stderr
    assert f"{name} bash -euo pipefail -c python train.py" in (desk.folder / "docker.log").read_text()


def test_what_failed_elsewhere_is_not_released(registry: RunningRegistry, desk: Press) -> None:
    image = open_layout(desk.layout).image(TAG)
    desk.signed(desk.report(image, found("cuda", "failed", "no")), "reports/report.dsse.json")
    done = release(desk, f"{registry.host}/team/refused")

    assert done.returncode != 0
    assert f"release: {TAG}: failed (7)" in done.stderr
    with pytest.raises(urllib.error.HTTPError):
        tags(registry, "team/refused")
