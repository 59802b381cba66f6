"""The real 2.7.1 in a registry, cleared by GPU reports or by --override; verified, pulled, run by Docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.engine.registry import RunningRegistry
from tests.keys import pem, public_pem
from tests.proof.conftest import TAG
from tests.proof.test_reproducible import kept
from tools.kept import PROOFS
from torchkiln.smoke.attestation import PREDICATE
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof
NAMES = [f"{TAG}-20261122", "2.7-cuda12.1-runtime", TAG, "v2.7"]
REASON = "no GPU report of this image is kept: to be made again on GPUs"


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Where the image was published, and by whom."""

    folder: Path
    repository: str
    told: Mapping[str, Any]  # what `publish --json` said
    override: str | None  # why it was published without GPU reports of it; None: the gate cleared it
    arguments: tuple[str, ...]  # of `publish`, but for the repository

    def command(self, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run here; with another *cache* where one is named."""
        environ = dict(os.environ) | ({"TORCHKILN_CACHE": str(cache)} if cache else {})
        argv = [sys.executable, str(ROOT / "build.py"), *arguments]
        return subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)

    @property
    def keys(self) -> tuple[str, ...]:
        laboratory = [str(path) for path in sorted(PROOFS.glob("*.pub.pem"))]
        return tuple(word for key in (str(self.folder / "pub.pem"), *laboratory) for word in ("--key", key))


@pytest.fixture(scope="module", params=["cleared by GPU reports", "no GPU reports: override"])
def shelf(
    request: pytest.FixtureRequest,
    image: dict[str, Any],
    registry: RunningRegistry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Shelf:
    """Published once: with GPU reports of this image where there are any, else with --override.

    The reports are signed by the laboratories' keys that are kept. Those of an earlier image clear nothing.
    """
    current = kept(image, current=True)
    if bool(current) is not (request.param == "cleared by GPU reports"):
        state = "GPU reports" if current else "no GPU report"
        pytest.skip(f"{image['digest']} has {state}: see the other state of this test")
    reports, override = (current, None) if current else (kept(image, current=False), REASON)
    assert reports, "without --report the gate takes this machine's own runs"
    folder = tmp_path_factory.mktemp("shelf")
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(pem(key))
    (folder / "key.pem").chmod(0o600)
    (folder / "pub.pem").write_bytes(public_pem(key))
    words = [word for one in reports for word in ("--report", str(PROOFS / one.name))]
    words += [word for path in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", str(path))]
    words += ["--output", image["layout"], "--key", str(folder / "key.pem"), "--dated", "20261122", "--json"]
    words += ["--override", override] if override else []
    shelf = Shelf(
        folder=folder,
        repository=f"{registry.host}/team/pytorch",
        told={},
        override=override,
        arguments=("publish", TAG, *words),
    )
    done = shelf.command(*shelf.arguments, "--to", shelf.repository)
    assert done.returncode == 0, done.stderr
    return replace(shelf, told=json.loads(done.stdout))


def test_the_tested_digest_is_there_under_every_name(
    shelf: Shelf, image: dict[str, Any], registry: RunningRegistry
) -> None:
    assert shelf.told["digest"] == image["digest"]
    assert shelf.told["override"] == shelf.override
    assert registry.tags("team/pytorch") == sorted(NAMES)
    kinds = {one["kind"] for one in shelf.told["statements"]}
    assert {"https://spdx.dev/Document", "https://cyclonedx.org/bom", "urn:torchkiln:clearance:1"} <= kinds
    assert (PREDICATE in kinds) is (shelf.override is None)


def test_a_sibling_repository_costs_no_byte(shelf: Shelf, registry: RunningRegistry) -> None:
    """Every blob is mounted."""
    done = shelf.command(*shelf.arguments, "--to", f"{registry.host}/team/sibling")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert (told["bytes_sent"], told["mounted"]) == (0, len(told["blobs"]))


def test_it_is_verified_with_an_empty_cache(shelf: Shelf, image: dict[str, Any], tmp_path: Path) -> None:
    """Down to the bytes of each layer, and to what the SBOMs say of them."""
    done = shelf.command(
        "verify", f"{shelf.repository}:v2.7", *shelf.keys, "--full", "--json", cache=tmp_path / "cache"
    )
    assert done.returncode == (12 if shelf.override else 0), done.stderr
    told = json.loads(done.stdout)

    assert (told["digest"], told["verified"]) == (image["digest"], shelf.override is None)
    assert {one["what"] for one in told["points"]} == {
        *("signatures", "provenance", "lock", "name", "smoke", "sbom", "layers", "contents")
    }
    wrong = {one["what"]: one["text"] for one in told["points"] if not one["good"]}
    assert wrong.keys() == ({"smoke"} if shelf.override else set())
    if shelf.override:
        assert wrong["smoke"].startswith(f"published with --override: {shelf.override}\n")


def test_it_is_built_again_from_what_the_registry_has(shelf: Shelf, image: dict[str, Any]) -> None:
    """From the lock in the provenance, on the image's own base; not while anything else is wrong."""
    done = shelf.command(
        "verify", f"{shelf.repository}@{image['digest']}", *shelf.keys, "--rebuild", "--json"
    )
    assert done.returncode == (12 if shelf.override else 0), done.stderr
    points = {one["what"]: one["text"] for one in json.loads(done.stdout)["points"]}
    expected = f"rebuilt from its lock: {image['digest']}"
    assert points["rebuild"] == ("not rebuilt: verification failed (smoke)" if shelf.override else expected)


def test_docker_pulls_and_runs_it(shelf: Shelf, engine: Mapping[str, str], image: dict[str, Any]) -> None:
    reference = f"{shelf.repository}:v2.7"

    def docker(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *words], env=dict(engine), capture_output=True, text=True, check=False
        )

    pulled = docker("pull", "--quiet", reference)
    assert pulled.returncode == 0, pulled.stderr
    try:
        code = "import torch; print(torch.__version__, (torch.ones(3) * 2).sum().item())"
        ran = docker("run", "--rm", reference, "python", "-c", code)
        assert ran.stdout.splitlines()[-1] == "2.7.1+cu126 6.0", ran.stderr
        names = docker("image", "inspect", "--format", "{{json .RepoDigests}}", reference).stdout
        # Among other names: other tests have put the same image into this engine.
        assert f"{shelf.repository}@{image['digest']}" in json.loads(names)
    finally:
        docker("image", "rm", "--force", reference)
