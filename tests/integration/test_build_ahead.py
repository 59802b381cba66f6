"""`build --ahead`: layers are in a real registry when the build ends, and `publish` sends none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docker.scene import TAG, Scene
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from torchkiln.oci.layout import open_layout

pytestmark = pytest.mark.network  # pip's wheel, and where the cache has none, the base


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_publish_finds_every_layer_there(scene: Scene, registry: RunningRegistry, form: str) -> None:
    """Layers made now, made before, and compressed ones; no tag before `publish` sets it."""
    target = f"{registry.host}/ahead/{form}"
    ran = scene.kiln("--output", form, "--layer-format", form, "--ahead", target, "--json")
    assert ran.returncode == 0, ran.stderr
    layers = json.loads(ran.stdout)["layers"]

    assert json.loads(ran.stdout)["ahead"]["blobs"] == len(layers)
    assert all(registry.blob(layer["digest"]).stat().st_size == layer["size"] for layer in layers)
    assert registry.tags(f"ahead/{form}") == []

    ran = scene.publish(target, "--output", form, "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    config = open_layout(scene.images.parent / form).image(TAG).config_digest  # all forms have the same
    assert {blob["digest"] for blob in told["blobs"] if blob["sent"]} <= {config}
    assert registry.tags(f"ahead/{form}") == ["trial"]


def test_a_registry_that_is_not_there_is_told_before_the_work(scene: Scene) -> None:
    ran = scene.kiln("--output", "never", "--ahead", "127.0.0.1:9/team/pytorch")

    assert ran.returncode == 9
    assert "127.0.0.1:9" in ran.stderr
    assert not (scene.images.parent / "never").exists()


def test_a_registry_that_fails_meanwhile_costs_no_build(scene: Scene, registry: RunningRegistry) -> None:
    """Exit 9, no digest on stdout; but the image is in the layout, and the next run sends what is missing."""
    with FaultProxy(registry.host) as proxy:
        proxy.faults.append(Fault(kind="status", method="PUT|PATCH", times=10_000, status=403))
        ran = scene.kiln("--output", "kept", "--ahead", f"{proxy.host}/ahead/fails")
        assert (ran.returncode, ran.stdout) == (9, "")
        assert "403" in ran.stderr
        kept = open_layout(scene.images.parent / "kept").image(TAG)

        proxy.faults.clear()
        again = scene.kiln("--output", "kept", "--ahead", f"{proxy.host}/ahead/fails")
        assert (again.returncode, again.stdout.strip()) == (0, kept.manifest)


def test_what_is_for_the_other_engine_is_refused(scene: Scene, tmp_path: Path) -> None:
    ran = scene.kiln("--engine", "docker", "--ahead", "127.0.0.1:9/x")

    assert ran.returncode == 2
    assert "--ahead is for --engine embedded" in ran.stderr
