"""`build --layer-format`: the check of recorded layers, compression, the cache, and refused blobs."""

from __future__ import annotations

import gzip
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from tests.cells import build, planned_cell, small_wheels
from tests.pool_worker import no_workers
from tests.unpublished import FakeIndex
from torchkiln.cli.build import build as build_command
from torchkiln.engine.cache_keys import format_key
from torchkiln.engine.image import convert
from torchkiln.errors import BuildFailed
from torchkiln.model.layer import ImageLayer, LayerFormat
from torchkiln.model.progress import Silent, Work
from torchkiln.oci.compression import TARGETS, TargetCompression
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store

__all__ = ["no_workers"]


class RecordingObserver(Silent):
    """Records the layers on which the build works, and the number of bytes of each."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.bytes = self.total = 0
        self._guard = threading.Lock()

    def begin(self, work: Work, name: str, total: int) -> None:
        assert work == "compress"
        self.total += total
        with self._guard:
            self.begun.append(name)

    def advance(self, work: Work, name: str, count: int) -> None:
        with self._guard:
            self.bytes += count


@pytest.fixture(params=list(TARGETS))
def named(request: pytest.FixtureRequest) -> LayerFormat:
    found: LayerFormat = request.param
    return found


@pytest.fixture
def form(named: LayerFormat) -> TargetCompression:
    return TARGETS[named]


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


@pytest.fixture
def layers(wheels: list[Path], tmp_path: Path) -> tuple[ImageLayer, ...]:
    """The plain layers of a small image, in the cache."""
    return build(planned_cell(wheels), tmp_path / "cache", tmp_path / "plain", FakeIndex(wheels)).image.layers


def leftovers(cache: Path) -> list[str]:
    return [str(path) for path in (cache / "tmp").rglob("*") if path.is_file()]


def test_each_layer_is_made_once(
    form: TargetCompression, layers: tuple[ImageLayer, ...], tmp_path: Path
) -> None:
    """Progress counts every byte; the second time the cache has all layers; a deleted blob is rebuilt."""
    store, first, second, third = (
        Store(tmp_path / "cache"),
        RecordingObserver(),
        RecordingObserver(),
        RecordingObserver(),
    )
    made = convert(form, layers, store, first)
    assert convert(form, layers, store, second) == made
    store.blob(made[1].blob.digest).unlink()
    assert convert(form, layers, store, third) == made

    assert sorted(first.begun) == sorted(layer.title for layer in layers)
    assert first.bytes == first.total == sum(layer.blob.unpacked for layer in layers)
    assert second.begun == []
    assert third.begun == [layers[1].title]
    assert [layer.blob.diff_id for layer in made] == [layer.blob.diff_id for layer in layers]
    assert not {layer.blob.digest for layer in made} & {layer.blob.digest for layer in layers}
    assert all(store.has_blob(layer.blob.digest, layer.blob.size) for layer in made)
    assert leftovers(tmp_path / "cache") == []


def test_prune_keeps_layers_in_progress(
    named: LayerFormat, form: TargetCompression, wheels: list[Path], tmp_path: Path
) -> None:
    """Until the layout is written, a running build claims all its layers, so `prune` keeps them."""
    cache = tmp_path / "cache"
    claimed: list[int] = []

    class Watching(Silent):
        def begin(self, work: Work, name: str, total: int) -> None:
            if work in ("compress", "write"):
                needs = {need for claim in Store(cache).claims() for need in claim.needs or ()}
                claimed.append(sum(need.startswith(f"records/{form.name}/") for need in needs))

    with patch("tests.cells.Silent", Watching):
        build(planned_cell(wheels), cache, tmp_path / "out", FakeIndex(wheels), layer_format=named)

    assert claimed == [5] * 6
    assert Store(cache).claims() == ()


def test_compressed_layers_are_deterministic(
    named: LayerFormat, form: TargetCompression, wheels: list[Path], tmp_path: Path
) -> None:
    """Two independent builds are equal; a layout in the other format does not change."""
    cell, index = planned_cell(wheels), FakeIndex(wheels)
    first, second = (
        build(cell, tmp_path / name, tmp_path / f"{name} layout", index, layer_format=named) for name in "ab"
    )
    plain = build(cell, tmp_path / "a", tmp_path / "plain", index)

    assert (first.layer_format, plain.layer_format) == (named, "gzip")
    assert first.image.manifest == second.image.manifest != plain.image.manifest
    assert first.image.config == plain.image.config
    assert dict(first.seconds).keys() - dict(plain.seconds).keys() >= {"compress"}
    assert validate(tmp_path / "a layout") == validate(tmp_path / "plain") == ()


def test_the_lock_records_gzip_layers(
    named: LayerFormat, wheels: list[Path], layers: tuple[ImageLayer, ...], tmp_path: Path
) -> None:
    """The build compares layers with the lock before it compresses them. A wrong digest stops the build."""
    recorded = layers[:3]
    index, cache = FakeIndex(wheels), tmp_path / "cache"
    good = planned_cell(wheels, recorded)
    wrong = replace(recorded[0].blob, digest=recorded[1].blob.digest)
    bad = planned_cell(wheels, (replace(recorded[0], blob=wrong), *recorded[1:]))

    build(good, cache, tmp_path / "good", index, layer_format=named)
    with pytest.raises(BuildFailed, match=r"expected sha256:.*, got sha256:"):
        build(bad, cache, tmp_path / "bad", index, layer_format=named)


@pytest.mark.parametrize("damage", ["flip", "cut", "swap", "forge"])
def test_a_damaged_blob_is_refused(
    damage: str, form: TargetCompression, layers: tuple[ImageLayer, ...], tmp_path: Path
) -> None:
    """The message has layer, file and reason. The build leaves no layer and no temporary file."""
    store = Store(tmp_path / "cache")
    blob = store.blob(layers[1].blob.digest)
    data = bytearray(blob.read_bytes())
    blob.chmod(0o644)
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        data = data[:-9]
    elif damage == "forge":  # a complete member, of the right length
        tar = bytearray(gzip.decompress(data))
        tar[len(tar) // 2] ^= 1
        data = bytearray(gzip.compress(tar, mtime=0))
    else:  # complete members, but of another layer
        data = bytearray(store.blob(layers[0].blob.digest).read_bytes())
    blob.write_bytes(data)

    with pytest.raises(BuildFailed, match=f"{layers[1].title!r}: .*{blob.name}") as refused:
        convert(form, layers, store, Silent())

    reasons = {"swap": "it has less than", "forge": "diff_id mismatch"}
    assert reasons.get(damage, "it is damaged") in refused.value.message
    assert "cache is damaged" in refused.value.hint
    assert store.record(form.name, format_key(layers[1].blob.digest, form.encoder)) is None
    assert leftovers(tmp_path / "cache") == []


def test_an_interrupt_stops_all_workers(
    form: TargetCompression, layers: tuple[ImageLayer, ...], tmp_path: Path
) -> None:
    """An exception in one worker, as after Ctrl-C, stops the other workers and ends the build."""

    class InterruptingObserver(Silent):
        def advance(self, work: Work, name: str, count: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(form, layers, Store(tmp_path / "cache"), InterruptingObserver())

    assert leftovers(tmp_path / "cache") == []


def test_two_concurrent_builds_make_each_layer_once(
    form: TargetCompression, layers: tuple[ImageLayer, ...], tmp_path: Path
) -> None:
    observers = [RecordingObserver(), RecordingObserver()]
    found: list[tuple[ImageLayer, ...]] = []
    threads = [
        threading.Thread(target=lambda o=o: found.append(convert(form, layers, Store(tmp_path / "cache"), o)))
        for o in observers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found[0] == found[1]
    assert sorted(observers[0].begun + observers[1].begun) == sorted(layer.title for layer in layers)


def test_a_removed_format_is_refused() -> None:
    """Layers of a single gzip member are no longer supported."""
    ran = CliRunner().invoke(build_command, ["--torch", "2.7", "--layer-format", "gzip-joined"])

    assert ran.exit_code == 2
    assert "'gzip-joined' is not one of 'gzip', 'zstd'" in ran.output
