"""`make release` and the workflow jobs, without GPUs: gate, registry, verification and failures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.checkouts import commit
from tests.docker.scene import Scene as Small
from tests.engine.registry import RunningRegistry
from tests.keys import ED, UNKNOWN_KEY, pem, public_pem
from tests.planned import locked
from tests.publisher import Publisher, new_publisher
from tests.reports import TAG, found
from tests.unit.test_workflows import COMMON, matrix
from tests.workflow_scene import scene
from torchkiln.base import artefact
from torchkiln.locks.lock import inputs_digest, load_locked
from torchkiln.oci.layout import open_layout
from torchkiln.util.places import ROOT


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    """A checkout with a small suite and one small image, which is built."""
    for name in (".github", "torchkiln", "rootfs", "templates", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "build.py", "matrix.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    made = new_publisher(tmp_path)
    cell = locked()
    fresh = replace(
        cell, inputs=inputs_digest(cell.resolution, ())
    )  # the digest that the lock predicts with this matrix and these facts
    with patch("tests.cells.locked", lambda: fresh):
        made.build()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text('#!/bin/sh\necho "docker $*" >> docker.log\n')
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "stranger.pem").write_bytes(public_pem(UNKNOWN_KEY))
    made.suite.rename(tmp_path / "smoke_tests")
    (tmp_path / "suite").symlink_to("smoke_tests")
    (tmp_path / "reports").mkdir()
    return made


def release(publisher: Publisher, to: str) -> subprocess.CompletedProcess[str]:
    """Run `make release` with the reports in reports/, which the laboratory's key signed."""
    variables = [f"TO={to}", "KEY=publisher.pem", "REPORTS=reports", "TRUST=lab.pub.pem"]
    return subprocess.run(
        ["make", "--silent", "--old-file=.venv/.ready", "release", *variables],
        cwd=publisher.folder,
        env={**os.environ, **publisher.environ, "PYTHONPATH": str(publisher.folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def gated(publisher: Publisher, image: str, *keys: str) -> subprocess.CompletedProcess[str]:
    """Run the torch-gate action on *image*, verified with *keys*; `docker` is a stub."""
    variables = {"IMAGE": image, "SCRIPT": "python train.py", "GPUS": "all", "SHM_SIZE": "8g"}
    variables |= {"KEYS": "\n".join(keys), "IDENTITY": "", "ISSUER": ""}
    return subprocess.run(
        [publisher.folder / ".github/actions/torch-gate/gate.sh"],
        cwd=publisher.folder,
        env={
            **os.environ,
            **publisher.environ,
            **variables,
            "PATH": f"{publisher.folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(publisher.folder),
            "TORCHKILN_CACHE": str(publisher.folder / "empty"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def tags(registry: RunningRegistry, name: str) -> set[str]:
    """The tags in the registry's list, without those of referrers."""
    with urllib.request.urlopen(f"http://{registry.host}/v2/{name}/tags/list", timeout=300) as answer:
        return {name for name in json.loads(answer.read())["tags"] if not name.startswith("sha256-")}


@pytest.mark.proof
def test_an_image_tested_elsewhere_is_released_and_verified(
    registry: RunningRegistry, publisher: Publisher
) -> None:
    image = open_layout(publisher.layout).image(TAG)
    publisher.signed(publisher.report(image), "reports/report.dsse.json")
    done = release(publisher, f"{registry.host}/team/released")

    assert done.returncode == 0, done.stderr
    assert f"{registry.host}/team/released@{image.manifest}\n" in done.stdout
    assert done.stderr.splitlines()[-1] == f"release: {TAG}: published and verified"
    assert {TAG, "2.7-cuda12.1-runtime", "v2.7"} < tags(registry, "team/released")

    name = f"{registry.host}/team/released@{image.manifest}"
    refused = gated(publisher, name, "any=stranger.pem")
    assert (refused.returncode, (publisher.folder / "docker.log").exists()) == (12, False), refused.stderr
    let = gated(publisher, name, "publisher=publisher.pub.pem", "laboratory=lab.pub.pem")
    assert let.returncode == 0, let.stderr
    assert f"{name} bash -euo pipefail -c python train.py" in (publisher.folder / "docker.log").read_text()


def test_an_image_that_failed_elsewhere_is_not_released(
    registry: RunningRegistry, publisher: Publisher
) -> None:
    image = open_layout(publisher.layout).image(TAG)
    publisher.signed(publisher.report(image, found("cuda", "failed", "no")), "reports/report.dsse.json")
    done = release(publisher, f"{registry.host}/team/refused")

    assert done.returncode != 0
    assert f"release: {TAG}: failed (7)" in done.stderr
    with pytest.raises(urllib.error.HTTPError):
        tags(registry, "team/refused")


# --- workflow jobs with an image that fails its tests ----------------------------------------------


# The complete chain of jobs takes a minute, which is too long for `make test`.


@pytest.mark.network
@pytest.mark.proof
def test_an_image_that_fails_its_tests_is_built_bundled_reported_and_not_published(
    scene_of_docker: Small, tmp_path: Path
) -> None:
    place = scene(tmp_path)
    shutil.rmtree(place.origin / "images")
    shutil.copytree(scene_of_docker.images, place.origin / "images")
    images = place.origin / "images"
    artefact.write_lock(images, load_locked(images, TAG).base)
    commit(place.origin)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/.kiln").symlink_to(scene_of_docker.cache)
    (tmp_path / "key.pem").write_bytes(pem(ED))
    (tmp_path / "key.pem").chmod(0o600)
    values = {
        **COMMON,
        **matrix(),
        "github.workspace": str(tmp_path / "workspace"),
        "secrets.TORCHKILN_TRUSTED": public_pem(ED).decode(),
        "secrets.TORCHKILN_KEY_PASSPHRASE": "",
    }
    real = {"CI_TOOLS_REAL": "build smoke gate", "TORCHKILN_CACHE": str(scene_of_docker.cache)}

    built = place.job("build.yml", "build", values, **real)
    assert [line for line in built if line.code] == []
    digest = next(line.out.strip() for line in built if "torchkiln build" in line.line)
    with tarfile.open(tmp_path / f"artifacts/bundle-{TAG}.tar") as bundle:
        carried = bundle.extractfile("bundle.json")
        assert carried is not None
        assert json.loads(carried.read())["image"] == digest

    proved = place.job("gpu-proof.yml", "prove", values, TORCHKILN_KEY_FILE=str(tmp_path / "key.pem"), **real)
    assert [line.code for line in proved] == [0, 10, 0], proved
    report = json.loads((tmp_path / f"artifacts/proof-{TAG}/report.json").read_bytes())
    assert (report["image"], report["verdict"]) == (digest, "fail")

    published = place.job("publish.yml", "publish", values, **real)
    assert published[-1].code == 7
    assert "torchkiln gate" in published[-1].line
    assert place.calls("torchkiln", "publish") == []


@pytest.fixture(scope="module")
def scene_of_docker(request: pytest.FixtureRequest) -> Small:
    """tests.docker's fixture `scene` under another name, because `scene` here is that of the workflows."""
    found: Small = request.getfixturevalue("scene")
    return found
