"""A small cache made by a real build, with its layout, for tests of `torchkiln cache`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import company
from tests.cells import planned_cell, small_wheels
from tests.unpublished import FakeIndex
from torchkiln.cli.cache import cache as command
from torchkiln.engine.cache_claims import remember_layout
from torchkiln.locks.file import to_json
from torchkiln.store.store import Store


class Scene:
    """A cache, a layout `dist` built from it under the tag t, and a folder for locks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.layout = folder, folder / "cache", folder / "dist"
        self.wheels = sorted((folder / "wheels").glob("*.whl"))

    def build(self) -> str:
        built = company.build(self.wheels, self.cache, self.layout, FakeIndex(self.wheels), ref="t")
        return built.image.manifest

    def lock(self) -> None:
        place = self.folder / "images" / "small-tag" / "lock.json"
        place.parent.mkdir(parents=True)
        place.write_bytes(to_json(planned_cell(self.wheels).locked))

    def forget(self) -> None:
        """Delete the layout, and set the access and modification times of all cached files to 1970."""
        shutil.rmtree(self.layout)
        for path in self.cache.rglob("*"):
            os.utime(path, (0, 0))

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(command, [args[0], "--images", str(self.folder / "images"), *args[1:]])

    def run_json(self, *args: str) -> Any:
        done = self.run(*args, "--json")
        assert done.exception is None, done.exception
        return json.loads(done.stdout)

    def files(self, kind: str) -> list[Path]:
        return [path for path in sorted((self.cache / kind).rglob("*")) if path.is_file()]

    def torch(self) -> Path:
        """The blob of the torch layer, which is the largest."""
        return max(self.files("blobs"), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache and a layout from one real build. The fixture `scene` copies it for each test."""
    folder = tmp_path_factory.mktemp("made")
    small_wheels(folder / "wheels")
    Scene(folder).build()
    return folder


@pytest.fixture
def scene(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A copy of the folder `made`, which a test may change and damage."""
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    subprocess.run(["cp", "-a", f"{made}/.", str(tmp_path)], check=True)
    copied = Scene(tmp_path)
    shutil.rmtree(copied.cache / "records" / "layouts")
    remember_layout(Store(copied.cache), copied.layout)
    return copied


def damage(path: Path) -> None:
    """Change one byte in place, like a disk error: all hard links to the file change."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    path.chmod(0o444)
