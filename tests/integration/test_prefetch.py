"""Wheels downloaded while a build waits for its base, and layers pushed during the build (`--ahead`)."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cells import build, planned_cell, small_wheels
from tests.docker.scene import TAG, Scene
from tests.engine.registry import RunningRegistry
from tests.faultproxy import Fault, FaultProxy
from tests.unpublished import FakeIndex
from torchkiln.engine.prefetch import demand_space, fetching, missing_wheels
from torchkiln.errors import BuildFailed
from torchkiln.model.plan import WheelLayer
from torchkiln.oci.layout import open_layout
from torchkiln.store.store import Store


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


def arrived(store: Store) -> dict[str, int]:
    """The number of bytes of each partially downloaded wheel, by file name."""
    parts = store.root.glob("wheels/*/*.part")
    return {path.name.removesuffix(".part"): path.stat().st_size for path in parts}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_prefetched_bytes_are_not_requested_again(wheels: list[Path], tmp_path: Path) -> None:
    cell, index, store = planned_cell(wheels), FakeIndex(wheels), Store(tmp_path / "cache")
    sizes = {wheel.name: wheel.stat().st_size for wheel in wheels}
    with fetching(missing_wheels(cell, store), store, index):
        end = time.monotonic() + 300
        while arrived(store) != sizes and time.monotonic() < end:
            time.sleep(0.01)
    assert arrived(store) == sizes

    built = build(cell, store.root, tmp_path / "layout", index)

    assert index.sent == sizes
    assert missing_wheels(cell, store) == ()
    assert arrived(store) == {}
    fresh = build(cell, tmp_path / "other", tmp_path / "others", FakeIndex(wheels))
    assert built.image.manifest == fresh.image.manifest


def test_a_cache_without_space_is_refused_before_the_start(wheels: list[Path], tmp_path: Path) -> None:
    """Both the wheels and the layers must fit: here the free space is enough for one of them."""
    plan, store = planned_cell(wheels), Store(tmp_path / "cache")
    demand_space(plan, store)
    each = shutil.disk_usage(tmp_path).free * 2 // 3 // len(wheels)
    large = {wheel: replace(wheel, size=each) for layer in plan.of(WheelLayer) for wheel in layer.wheels}
    layers = tuple(
        replace(layer, wheels=tuple(map(large.__getitem__, layer.wheels)))
        if isinstance(layer, WheelLayer)
        else layer
        for layer in plan.layers
    )
    with pytest.raises(BuildFailed, match=r"No space left on device: .* free, .* needed"):
        demand_space(replace(plan, layers=layers), store)


def test_an_interrupted_prefetch_is_resumed(wheels: list[Path], tmp_path: Path) -> None:
    """The base is ready before the wheels: the prefetch stops, and the build downloads only missing bytes."""
    cell, store = planned_cell(wheels), Store(tmp_path / "cache")
    index = FakeIndex(wheels, piece=100, pause=0.01)
    sizes = {wheel.name: wheel.stat().st_size for wheel in wheels}
    with fetching(missing_wheels(cell, store), store, index):
        end = time.monotonic() + 300
        while not sum(arrived(store).values()) and time.monotonic() < end:
            time.sleep(0.001)
    assert 0 < sum(arrived(store).values()) < sum(sizes.values())
    assert threads() == []

    index.pause = 0.0
    build(cell, store.root, tmp_path / "layout", index)
    assert index.sent == sizes


def test_an_error_during_prefetch_is_raised_and_downloads_stop(wheels: list[Path], tmp_path: Path) -> None:
    cell, store = planned_cell(wheels), Store(tmp_path / "cache")
    index = FakeIndex(wheels, piece=100, pause=0.01)
    with (
        pytest.raises(BuildFailed, match="no base"),
        fetching(missing_wheels(cell, store), store, index),
    ):
        raise BuildFailed("no base")
    assert threads() == []


def test_a_failed_prefetch_is_reported_by_the_build(wheels: list[Path], tmp_path: Path) -> None:
    cell, store = planned_cell(wheels), Store(tmp_path / "cache")
    index = FakeIndex(wheels, piece=100, broken={wheel.name: "the index is away" for wheel in wheels})
    with fetching(missing_wheels(cell, store), store, index):
        while threads() and len(index.fetched) < len(wheels):
            time.sleep(0.001)

    with pytest.raises(BuildFailed, match="the index is away"):
        build(cell, store.root, tmp_path / "layout", index)


# --- build --ahead ---------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_publish_finds_every_layer_there(scene: Scene, registry: RunningRegistry, form: str) -> None:
    """New, cached and compressed layers are already pushed; only `publish` sets the tag."""
    target = f"{registry.host}/ahead/{form}"
    ran = scene.kiln("--output", form, "--layer-format", form, "--ahead", target, "--json")
    assert ran.returncode == 0, ran.stderr
    layers = json.loads(ran.stdout)["layers"]

    assert json.loads(ran.stdout)["ahead"]["blobs"] == len(layers)
    assert all(registry.blob(layer["digest"]).stat().st_size == layer["size"] for layer in layers)
    assert registry.tags(f"ahead/{form}") == []

    ran = scene.publish(target, "--output", form, "--json")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    config = open_layout(scene.images.parent / form).image(TAG).config_digest  # equal in all formats
    assert {blob["digest"] for blob in result["blobs"] if blob["sent"]} <= {config}
    assert registry.tags(f"ahead/{form}") == ["trial"]


@pytest.mark.network
def test_an_unreachable_registry_is_reported_before_the_build(scene: Scene) -> None:
    ran = scene.kiln("--output", "never", "--ahead", "127.0.0.1:9/team/pytorch")

    assert ran.returncode == 9
    assert "127.0.0.1:9" in ran.stderr
    assert not (scene.images.parent / "never").exists()


@pytest.mark.network
def test_a_registry_that_fails_during_a_build_does_not_stop_it(
    scene: Scene, registry: RunningRegistry
) -> None:
    """Exit code 9, no digest on stdout; the layout has the image, and the next run pushes missing blobs."""
    with FaultProxy(registry.host) as proxy:
        proxy.faults.append(Fault(kind="status", method="PUT|PATCH", times=10_000, status=403))
        ran = scene.kiln("--output", "kept", "--ahead", f"{proxy.host}/ahead/fails")
        assert (ran.returncode, ran.stdout) == (9, "")
        assert "403" in ran.stderr
        cached = open_layout(scene.images.parent / "kept").image(TAG)

        proxy.faults.clear()
        again = scene.kiln("--output", "kept", "--ahead", f"{proxy.host}/ahead/fails")
        assert (again.returncode, again.stdout.strip()) == (0, cached.manifest)


@pytest.mark.network
def test_options_of_the_docker_engine_are_refused(scene: Scene, tmp_path: Path) -> None:
    ran = scene.kiln("--engine", "docker", "--ahead", "127.0.0.1:9/x")

    assert ran.returncode == 2
    assert "--ahead is for --engine embedded" in ran.stderr
