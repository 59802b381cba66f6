"""`publish --keyless` and `verify --identity`, by the real library, against a Sigstore on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keyless_scene import Job, job
from tests.reports import TAG
from tests.standin.sigstore_server import IDENTITY


@pytest.fixture(params=[1, 2], ids=["Rekor 1", "Rekor 2"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with job(tmp_path / "desk", monkeypatch, rekor=request.param) as found:
        yield found


def test_what_a_job_signed_is_verified_elsewhere(scene: Job) -> None:
    done = scene.publish()
    assert done.exit_code == 0, done.exception
    scene.become(GITHUB_ACTIONS=None, ACTIONS_ID_TOKEN_REQUEST_TOKEN=None)

    told = scene.verify("--json")

    assert told.exit_code == 0, told.exception
    points = {one["what"]: one["text"] for one in json.loads(told.stdout)["points"]}
    assert IDENTITY in points["signatures"]
    assert len(scene.sigstore.log.leaves) == 1 + len(scene.bundles())
    assert TAG in scene.there.tags
