"""A cell that a real Docker engine builds in seconds: generated wheels, a slim base, the locked pip."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cells import small_wheels
from tests.docker.slim import slim_base
from tests.realpip import locked_pip
from tests.unpublished import locked_wheel
from torchkiln.base import artefact
from torchkiln.index.download import open_downloads
from torchkiln.lock.lock import load_locked, save
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
NAME = f"pytorch-cuda:{TAG}"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A cell that a real engine can build in seconds."""

    images: Path
    cache: Path
    environ: Mapping[str, str]

    def kiln(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`build --torch 2.7 --cuda 12.1 ...` as a user types it."""
        cell = ("--torch", "2.7", "--cuda", "12.1", "--images", str(self.images))
        return self.command("build", *cell, *arguments, **environ)

    def publish(self, target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`publish TAG` under that tag alone, though nothing was proved."""
        words = ("--images", str(self.images), "--to", target, "--tag", "trial", "--override", "a test")
        return self.command("publish", TAG, *words, *arguments)

    def command(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Any command, in the folder that has `dist`."""
        return subprocess.run(
            self.argv(*arguments),
            env=self.settings(**environ),
            cwd=self.images.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    def argv(self, *arguments: str) -> list[str]:
        """The command line of *arguments*."""
        return [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), *arguments]

    def settings(self, **environ: str) -> dict[str, str]:
        """The environment in which commands run."""
        return {**self.environ, "TORCHKILN_CACHE": str(self.cache), **environ}

    def docker(self, *arguments: str) -> str:
        """What Docker's own client answers."""
        return subprocess.run(
            ["docker", *arguments], env=dict(self.environ), capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory, engine: Mapping[str, str]) -> Scene:
    """Lock, wheels and base; the base from the user's cache where it is there."""
    root = tmp_path_factory.mktemp("docker")
    kept, store = Store(cache_root()), Store(root / "cache")
    locked = load_locked(ROOT / "images", TAG)
    whole, _ = artefact.ensure(locked.base, kept, os_name="debian12", environ=os.environ)
    base = slim_base(whole, kept, store)
    pip = locked_pip()
    files = [*small_wheels(root), open_downloads(os.environ, kept).fetch_wheel(pip, kept)]
    wheels = tuple(sorted((*(locked_wheel(file) for file in files[:-1]), pip), key=lambda wheel: wheel.name))
    cell = replace(locked, base=base, wheels=wheels, layers=())
    save(root / "images", cell)
    for wheel, file in ((wheel, file) for file in files for wheel in wheels if wheel.filename == file.name):
        place = store.wheel(wheel)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file) if file.stat().st_dev != root.stat().st_dev else os.link(file, place)
    return Scene(images=root / "images", cache=store.root, environ=engine)
