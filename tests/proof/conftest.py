"""The real image of torch 2.7.1, built once for all proofs, and the same image built by Docker and pip.

`_PROOF` in tests/conftest.py has the modules that run in one process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_program
from tests.proof.headline import NAME, TAG
from tests.proof.publication import publication, pulled
from torchkiln.model.lock import LockedCell
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

__all__ = ["publication", "pulled"]


def build(
    output: Path, *arguments: str, cache: Path | None = None, under: Sequence[str] = ()
) -> dict[str, Any]:
    """Run `build.py build --json` for the cell in headline.py, as a user does; returns the JSON.

    :param under: the command that runs it.
    """
    command = [*under, sys.executable, str(ROOT / "build.py"), "--torch", "2.7", "--cuda", "12.1", "--json"]
    environ = dict(os.environ) | ({"TORCHKILN_CACHE": str(cache)} if cache else {})
    done = run_program([*command, "--output", str(output), *arguments], env=environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="session")
def locked(image: dict[str, Any]) -> LockedCell:
    """The lock of the image, which has a newer base than the committed one if the archive has moved."""
    return image_and_lock(TAG, Path(image["layout"]), ROOT / "images", Store(cache_root()))[2]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The image of headline.py, in a new layout."""
    return build(tmp_path_factory.mktemp("proof") / "dist")


@pytest.fixture(scope="module")  # some minutes, and 13 GB until the module ends
def by_docker(image: dict[str, Any], engine: Mapping[str, str], room: None) -> Iterator[Mapping[str, str]]:
    """The environment of an engine that built the cell's Dockerfile, where pip installs the same wheels."""
    command = [
        sys.executable,
        str(ROOT / "build.py"),
        "--torch",
        "2.7",
        "--cuda",
        "12.1",
        "--engine",
        "docker",
    ]
    done = run_program(command, env=dict(engine), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    # No test builds the image again, so its build cache is deleted; the image remains.
    prune = ["docker", "builder", "prune", "--all", "--force"]
    subprocess.run(prune, env=dict(engine), check=True, capture_output=True)
    yield engine
    free_images(engine)


def free_images(engine: Mapping[str, str]) -> None:
    """Free the 13 GB of the headline image, under all its names, and of its build in an engine."""

    def docker(*words: str) -> str:
        command = ["docker", *words]
        return run_program(command, env=dict(engine)).stdout

    names = docker("image", "inspect", "--format", "{{range .RepoTags}}{{println .}}{{end}}", NAME).split()
    docker("image", "rm", "--force", NAME, *names)
    docker("builder", "prune", "--all", "--force")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A lock for modules that need many GB of disk space: only one of them runs at a time."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (place / "room").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def unpacked(image: dict[str, Any]) -> Iterator[Path]:
    """The headline image's root file system in the cache (6 GB), for all modules that run in this process."""
    argv = [sys.executable, str(ROOT / "build.py"), "run", "--no-entrypoint", "--output", image["layout"]]
    done = run_program([*argv, image["ref"], "--", "true"], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    folder = cache_root() / "rootfs" / image["digest"].removeprefix("sha256:")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def free_rootfs() -> Iterator[None]:
    """Free the 6 GB of each other image that the module's tests unpacked."""
    rootfs = cache_root() / "rootfs"
    before = {*rootfs.glob("*")}
    yield
    for folder in {*rootfs.glob("*")} - before:
        shutil.rmtree(folder, ignore_errors=True)
