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
from tests.proof.test_reproducible import committed_reports
from tools.kept import PROOFS
from torchkiln.smoke.attestation import PREDICATE
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof
NAMES = [f"{TAG}-20261122", "2.7-cuda12.1-runtime", TAG, "v2.7"]
REASON = "the committed GPU reports of this image do not have every check: to be made on GPUs"


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A published image: its repository and signer."""

    folder: Path
    repository: str
    result: Mapping[str, Any]  # the output of `publish --json`
    override: str | None  # the reason for an override without GPU reports; None: the gate cleared it
    arguments: tuple[str, ...]  # of `publish`, without the repository

    def command(self, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; optionally with another *cache*."""
        environ = dict(os.environ) | ({"TORCHKILN_CACHE": str(cache)} if cache else {})
        argv = [sys.executable, str(ROOT / "build.py"), *arguments]
        return subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)

    @property
    def keys(self) -> tuple[str, ...]:
        laboratory = [str(path) for path in sorted(PROOFS.glob("*.pub.pem"))]
        return tuple(word for key in (str(self.folder / "pub.pem"), *laboratory) for word in ("--key", key))


@pytest.fixture(scope="module", params=["cleared by GPU reports", "no GPU reports: override"])
def publication(
    request: pytest.FixtureRequest,
    image: dict[str, Any],
    registry: RunningRegistry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Publication:
    """Publish once: with GPU reports of this image if there are any, else with --override.

    The reports are signed with the committed keys of the laboratories. Those of earlier images do not count.
    """
    current = committed_reports(image, current=True)
    if bool(current) is not (request.param == "cleared by GPU reports"):
        state = "GPU reports of every check" if current else "no GPU reports of every check"
        pytest.skip(f"{image['digest']} has {state}: see the other state of this test")
    reports, override = (current, None) if current else (committed_reports(image, current=False), REASON)
    assert reports, "without --report the gate takes this machine's own runs"
    folder = tmp_path_factory.mktemp("shelf")
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(pem(key))
    (folder / "key.pem").chmod(0o600)
    (folder / "pub.pem").write_bytes(public_pem(key))
    words = [word for report in reports for word in ("--report", str(PROOFS / report.name))]
    words += [word for path in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", str(path))]
    words += ["--output", image["layout"], "--key", str(folder / "key.pem"), "--dated", "20261122", "--json"]
    words += ["--override", override] if override else []
    publication = Publication(
        folder=folder,
        repository=f"{registry.host}/team/pytorch",
        result={},
        override=override,
        arguments=("publish", TAG, *words),
    )
    done = publication.command(*publication.arguments, "--to", publication.repository)
    assert done.returncode == 0, done.stderr
    return replace(publication, result=json.loads(done.stdout))


def test_the_tested_digest_is_there_under_every_name(
    publication: Publication, image: dict[str, Any], registry: RunningRegistry
) -> None:
    assert publication.result["digest"] == image["digest"]
    assert publication.result["override"] == publication.override
    assert registry.tags("team/pytorch") == sorted(NAMES)
    kinds = {statement["kind"] for statement in publication.result["statements"]}
    assert {"https://spdx.dev/Document", "https://cyclonedx.org/bom", "urn:torchkiln:clearance:1"} <= kinds
    assert (PREDICATE in kinds) is (publication.override is None)


def test_another_repository_needs_no_upload(publication: Publication, registry: RunningRegistry) -> None:
    """Every blob is mounted."""
    done = publication.command(*publication.arguments, "--to", f"{registry.host}/team/sibling")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)

    assert (result["bytes_sent"], result["mounted"]) == (0, len(result["blobs"]))


def test_the_image_is_verified_with_an_empty_cache(
    publication: Publication, image: dict[str, Any], tmp_path: Path
) -> None:
    """Including the bytes of each layer, and the SBOMs."""
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


def test_the_image_is_rebuilt_from_the_registry(publication: Publication, image: dict[str, Any]) -> None:
    """From the lock in the provenance, on the image's own base; not while anything else is wrong."""
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
    publication: Publication, engine: Mapping[str, str], image: dict[str, Any]
) -> None:
    reference = f"{publication.repository}:v2.7"

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
        # Other names may exist: other tests have loaded the same image into this engine.
        assert f"{publication.repository}@{image['digest']}" in json.loads(names)
    finally:
        docker("image", "rm", "--force", reference)
