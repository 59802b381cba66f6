"""The gate for other repositories: what its lines ask for there, and what they refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.checkouts import commit
from tests.workflow_scene import IMAGE, REGISTRY, SCRIPT, Scene, caller, gate, scene
from tests.workflows import ACTION, GITHUB, loaded
from torchkiln.util.places import ROOT


@pytest.fixture
def place(tmp_path: Path) -> Scene:
    return scene(tmp_path)


def test_the_script_runs_in_the_image_as_its_user(place: Scene) -> None:
    gate(place)
    (run,) = place.asked("docker", "run")
    folder = run.pop(run.index("--volume") + 1)

    assert folder.endswith("/a checkout:/workspace")
    assert (Path(folder.removesuffix(":/workspace")) / "train.py").is_file()
    assert run == [
        *("--rm", "--shm-size", "8g", "--volume", "--workdir", "/workspace"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--gpus", "all", IMAGE),
        *("bash", "-euo", "pipefail", "-c", SCRIPT),
    ]


def test_without_gpus(place: Scene) -> None:
    gate(place, gpus="none")
    assert "--gpus" not in place.asked("docker", "run")[0]


def test_given_a_key_it_verifies_first(place: Scene) -> None:
    gate(place, keys="our keys/a.pem\nb.pem\n")
    assert [line[:2] for line in place.asked()][-2:] == [["torchkiln", "verify"], ["docker", "run"]]
    keys = ["--key", "our keys/a.pem", "--key", "b.pem"]
    assert place.asked("torchkiln", "verify") == [[IMAGE, *keys]]


@pytest.mark.parametrize("image", [f"{REGISTRY}:v2.7", REGISTRY, f"{REGISTRY}@sha256:12", "--privileged"])
def test_it_takes_images_by_digest_only(place: Scene, image: str) -> None:
    ran = gate(place, image=image)[-1]
    assert (ran.code, "::error" in ran.out) == (2, True)
    assert place.asked("docker") == []


@pytest.mark.parametrize("ref", ["main", "v1.0.0", "", "1a2b3c4", "A" * 40])
def test_it_takes_itself_by_commit_only(place: Scene, ref: str) -> None:
    """A branch that moved would be another gate, and nobody would know."""
    ran = gate(place, ref=ref)[-1]
    assert (ran.code, f"ref: {ref} is no commit" in ran.out) == (2, True)
    assert place.asked() == []


def test_it_is_of_the_commit_that_the_caller_named(place: Scene) -> None:
    """Not of the newest, and not what the caller's own files say."""
    script = place.origin / ".github/actions/torch-gate/gate.sh"
    script.write_text("#!/bin/sh\nexit 77\n")
    newest = commit(place.origin)

    assert gate(place)[-1].code == 0
    assert gate(place, ref=newest)[-1].code == 77


def test_a_link_of_the_callers_leads_nothing_out_of_the_checkout(place: Scene) -> None:
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    (caller(place) / ".torchkiln").symlink_to(elsewhere)
    commit(caller(place))

    assert [one for one in gate(place) if one.code] == []
    assert list(elsewhere.iterdir()) == []


def test_it_ends_as_the_script_does_and_runs_nothing_unverified(place: Scene) -> None:
    assert gate(place, environ={"CI_TOOLS_SCRIPT_ENDS": "41"})[-1].code == 41
    place.remember("tampered")
    assert gate(place, identity="who", issuer="y")[-1].code == 1
    assert place.asked("torchkiln", "verify") == [[IMAGE, "--identity", "who", "--issuer", "y"]]
    assert len(place.asked("docker", "run")) == 1


def test_the_example_gives_what_is_wanted() -> None:
    page = (ROOT / "docs/ci.md").read_text().partition("## The gate, for your repository\n\n")[2]
    job = yaml.safe_load(page.partition("\n\n")[0])["jobs"]["gate"]
    inputs = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    needed = {key for key, one in inputs.items() if one.get("required") == "true"}

    assert needed <= set(job["with"]) <= set(inputs)
    assert job["uses"] == f"{job['with']['torchkiln']}/.github/workflows/gate.yml@{job['with']['ref']}"


def test_the_action_alone_in_a_job_of_ones_own(place: Scene) -> None:
    """Then it comes from GitHub, with the repository around it."""
    defaults = {key: one.get("default", "") for key, one in loaded(ACTION)["inputs"].items()}
    given = {**defaults, "image": IMAGE, "script": SCRIPT, "keys": "a.pem"}
    ran = place.job("action.yml", "torch-gate", {f"inputs.{key}": text for key, text in given.items()})

    assert [one.code for one in ran] == [0, 0]
    assert place.asked("docker", "run")[0][-1] == SCRIPT
