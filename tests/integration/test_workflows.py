"""The workflows' own lines on a small image: built, bundled, run by its bundle, and refused by the gate.

Its torch is none, so no GPU could prove it: what fails must come through to the end, and stop there.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.checkouts import commit
from tests.docker.scene import Scene as Small
from tests.keys import ED, pem, public_pem
from tests.unit.test_workflows import COMMON, matrix
from tests.workflow_scene import TAG, scene
from torchkiln.base import artefact
from torchkiln.lock.lock import load_locked

# A whole chain of jobs with a bundle of its own: a minute, too long for `make test`.
pytestmark = [pytest.mark.network, pytest.mark.proof]


def test_an_image_that_fails_its_proof_is_built_bundled_reported_and_not_published(
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
    assert [one for one in built if one.code] == []
    digest = next(one.out.strip() for one in built if "torchkiln build" in one.line)
    with tarfile.open(tmp_path / f"artifacts/bundle-{TAG}.tar") as bundle:
        carried = bundle.extractfile("bundle.json")
        assert carried is not None
        assert json.loads(carried.read())["image"] == digest

    proved = place.job("gpu-proof.yml", "prove", values, TORCHKILN_KEY_FILE=str(tmp_path / "key.pem"), **real)
    assert [one.code for one in proved] == [0, 10, 0], proved
    report = json.loads((tmp_path / f"artifacts/proof-{TAG}/report.json").read_bytes())
    assert (report["image"], report["verdict"]) == (digest, "fail")

    published = place.job("publish.yml", "publish", values, **real)
    assert published[-1].code == 7
    assert "torchkiln gate" in published[-1].line
    assert place.asked("torchkiln", "publish") == []


@pytest.fixture(scope="module")
def scene_of_docker(request: pytest.FixtureRequest) -> Small:
    """Under another name: the workflows have a scene, too."""
    found: Small = request.getfixturevalue("scene")
    return found
