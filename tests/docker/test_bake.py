"""The bake file, as buildx reads it, and a target of it built by BuildKit."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import TAG, Scene
from torchkiln.lock.lock import load_locked
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TARGET = "2-7-1-cuda12-1-cudnn9-runtime"


def bake(where: Path, environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`docker buildx bake` in the folder that has images/ and rootfs/."""
    argv = ["docker", "buildx", "bake", "-f", "images/docker-bake.json", *arguments]
    return subprocess.run(argv, cwd=where, env=dict(environ), capture_output=True, text=True, check=False)


def test_buildx_reads_the_committed_file(engine: Mapping[str, str]) -> None:
    """A target for each committed Dockerfile, in the groups that one would look for, by variables."""
    ran = bake(ROOT, {**engine, "REPOSITORY": "registry.example/torch"}, "--print", "torch-2-7", "cuda-11-7")
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)

    assert told["group"]["torch-2-7"]["targets"] == [TARGET]
    assert set(told["target"]) == {TARGET, "2-0-1-cuda11-7-cudnn8-runtime"}
    built = told["target"][TARGET]
    assert built["context"] == f"images/{TAG}"
    assert built["args"]["BASE"] == "debian:12-slim"
    assert built["tags"][0] == f"registry.example/torch:{TAG}"

    everything = json.loads(bake(ROOT, engine, "--print").stdout)
    contexts = {target["context"] for target in everything["target"].values()}
    tags = (path.parent.name for path in ROOT.glob("images/*/Dockerfile"))
    committed = {f"images/{tag}" for tag in tags if not load_locked(ROOT / "images", tag).by_record}
    assert contexts == {one for one in committed if not one.endswith("-devel") or "cuda13" in one}
    devel = json.loads(bake(ROOT, engine, "--print", "devel").stdout)
    assert {target["context"] for target in devel["target"].values()} >= committed - contexts


@pytest.mark.network
def test_a_target_is_built(scene: Scene) -> None:
    """From the wheels of a folder, on a base that the engine has, under the repository's name."""
    where, store = scene.images.parent, Store(scene.cache)
    locked = load_locked(scene.images, TAG)
    scene.docker("import", str(store.blob(locked.base.digest)), "torchkiln-test-base:1")
    (where / "wheels").mkdir()
    for wheel in locked.wheels:
        os.link(store.wheel(wheel).resolve(), where / "wheels" / wheel.filename)
    (where / "rootfs").symlink_to(ROOT / "rootfs")
    rendered = scene.command("render", "--images", str(scene.images), "--matrix", str(ROOT / "matrix.yaml"))
    assert rendered.returncode == 0, rendered.stderr

    settings = {"REPOSITORY": "baked", "BASE_DEBIAN12": "torchkiln-test-base:1"}
    ran = bake(where, {**scene.environ, **settings}, "--load", "runtime")
    assert ran.returncode == 0, ran.stderr

    code = "import torch, importlib.metadata as m; print(m.version('pip'))"
    said = scene.docker("run", "--rm", "--entrypoint", "python", "baked:v2.7", "-c", code).strip()
    assert said == next(wheel.version for wheel in locked.wheels if wheel.name == "pip")
