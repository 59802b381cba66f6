"""The real 2.7.1 in a registry, cleared by GPU reports or by --override; verified, pulled, run by Docker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.registry import RunningRegistry
from tests.needs import nightly
from tests.proof.headline import TAG
from tests.proof.publication import Publication
from torchkiln.smoke.attestation import PREDICATE

pytestmark = pytest.mark.proof
NAMES = [f"{TAG}-20261122", "2.7-cuda12.1-runtime", TAG, "v2.7"]


def test_the_tested_digest_is_there_under_every_name(
    publication: Publication, image: dict[str, Any], registry: RunningRegistry
) -> None:
    assert publication.result["digest"] == image["digest"]
    assert publication.result["override"] == publication.override
    assert registry.tags("team/pytorch") == sorted(NAMES)
    kinds = {statement["kind"] for statement in publication.result["statements"]}
    assert {"https://cyclonedx.org/bom", "urn:torchkiln:clearance:1"} <= kinds
    moved = {change.split()[0] for change in image["base_newer_than_lock"]}
    # GPU runs in earlier images count for the same GPU stack.
    same_stack = moved.isdisjoint(("libc6", "libgcc-s1", "libstdc++6"))
    assert (PREDICATE in kinds) is (publication.override is None or same_stack)


def test_another_repository_needs_no_upload(publication: Publication, registry: RunningRegistry) -> None:
    """The registry mounts every blob from the first repository."""
    done = publication.command(*publication.arguments, "--to", f"{registry.host}/team/sibling")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)

    assert (result["bytes_sent"], result["mounted"]) == (0, len(result["blobs"]))


def test_the_image_is_verified_with_an_empty_cache(
    publication: Publication, image: dict[str, Any], tmp_path: Path
) -> None:
    """--full also verifies the bytes of each layer, and the SBOM."""
    done = publication.command(
        "verify",
        f"{publication.repository}:v2.7",
        *publication.keys,
        "--full",
        "--json",
        cache=tmp_path / "cache",
    )
    assert done.returncode == (12 if publication.override else 0), done.stderr
    result = json.loads(done.stdout)

    assert (result["digest"], result["verified"]) == (image["digest"], publication.override is None)
    assert {point["what"] for point in result["points"]} == {
        *("signatures", "provenance", "lock", "name", "smoke", "sbom", "layers", "contents")
    }
    wrong = {point["what"]: point["text"] for point in result["points"] if not point["good"]}
    assert wrong.keys() == ({"smoke"} if publication.override else set())
    if publication.override:
        assert wrong["smoke"].startswith(f"published with --override: {publication.override}\n")


@nightly  # in `make proof`, test_twice.py builds the image twice
def test_the_image_is_rebuilt_from_the_registry(publication: Publication, image: dict[str, Any]) -> None:
    """`verify --rebuild` builds from the lock in the provenance, on the image's base."""
    done = publication.command(
        "verify", f"{publication.repository}@{image['digest']}", *publication.keys, "--rebuild", "--json"
    )
    assert done.returncode == (12 if publication.override else 0), done.stderr
    points = {point["what"]: point["text"] for point in json.loads(done.stdout)["points"]}
    expected = f"rebuilt from its lock: {image['digest']}"
    assert points["rebuild"] == (
        "not rebuilt: verification failed (smoke)" if publication.override else expected
    )


def test_docker_pulls_and_runs_it(
    publication: Publication, pulled: str, engine: Mapping[str, str], image: dict[str, Any]
) -> None:
    def docker(*words: str) -> subprocess.CompletedProcess[str]:
        argv = ["docker", *words]
        return subprocess.run(argv, env=dict(engine), capture_output=True, text=True, check=False)

    code = "import torch; print(torch.__version__, (torch.ones(3) * 2).sum().item())"
    ran = docker("run", "--rm", pulled, "python", "-c", code)
    assert ran.stdout.splitlines()[-1] == "2.7.1+cu126 6.0", ran.stderr
    names = docker("image", "inspect", "--format", "{{json .RepoDigests}}", pulled).stdout
    # Other names may exist: other tests may have loaded the same image into this engine.
    assert f"{publication.repository}@{image['digest']}" in json.loads(names)
