"""Fixtures: the headline image in a registry, and in a Docker engine that pulled it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.engine.registry import RunningRegistry
from tests.keys import pem, public_pem
from tests.proof.headline import NAME, TAG
from tests.proof.reports import committed_reports
from tools.kept import PROOFS
from torchkiln.util.places import ROOT

REASON = "the committed GPU reports of this image do not have every check: to be made on GPUs"


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A published image: its repository and signer."""

    folder: Path
    repository: str
    result: Mapping[str, Any]  # the output of `publish --json`
    override: str | None  # the reason for an override without GPU reports; None: the gate cleared it
    arguments: tuple[str, ...]  # the arguments of `publish`, without the repository

    def command(self, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a torchkiln command, by default with the user's cache."""
        environ = dict(os.environ) | ({"TORCHKILN_CACHE": str(cache)} if cache else {})
        argv = [sys.executable, str(ROOT / "build.py"), *arguments]
        return subprocess.run(argv, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)

    @property
    def keys(self) -> tuple[str, ...]:
        laboratories = [f"laboratory={path}" for path in sorted(PROOFS.glob("*.pub.pem"))]
        own = f"publisher={self.folder / 'pub.pem'}"
        return tuple(word for key in (own, *laboratories) for word in ("--key", key))


@pytest.fixture(scope="session")
def publication(
    image: dict[str, Any],
    registry: RunningRegistry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Publication:
    """Publish the image: with GPU reports if the repository has any of this image, otherwise with --override.

    The reports are signed with the committed keys of the laboratories. With reports of earlier images alone,
    tier 0 is missing.
    """
    current = committed_reports(image, current=True)
    reports, override = (current, None) if current else (committed_reports(image, current=False), REASON)
    assert reports, "without --report the gate takes this machine's own runs"
    folder = tmp_path_factory.mktemp("shelf")
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(pem(key))
    (folder / "key.pem").chmod(0o600)
    (folder / "pub.pem").write_bytes(public_pem(key))
    words = [word for report in reports for word in ("--report", str(PROOFS / report.name))]
    words += [word for path in sorted(PROOFS.glob("*.pub.pem")) for word in ("--trust", f"laboratory={path}")]
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


@pytest.fixture(scope="session")
def pulled(publication: Publication, engine: Mapping[str, str]) -> Iterator[str]:
    """The published image in a Docker engine that pulled it, also under its usual name."""
    reference = f"{publication.repository}:v2.7"
    for words in (("pull", "--quiet", reference), ("tag", reference, NAME)):
        done = subprocess.run(["docker", *words], env=dict(engine), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    yield reference
    argv = ["docker", "image", "rm", "--force", reference, NAME]
    subprocess.run(argv, env=dict(engine), capture_output=True, check=False)
