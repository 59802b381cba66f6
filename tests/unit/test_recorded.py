"""Layers that a lock records are built without decompressing wheels, and have the recorded digests."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cells import build, planned_cell, small_wheels
from tests.layers import tree_of_layer
from tests.pool_worker import pool_worker
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.engine.image import BuildResult
from torchkiln.engine.known import known_layers
from torchkiln.engine.worker import Task, WheelInput, make_layer
from torchkiln.errors import BadWheel
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store
from torchkiln.wheel import content, splice

__all__ = ["pool_worker"]

NOT_ZERO = Digest("sha256:" + "1" * 64)


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(size)


SPEC = WheelSpec(
    name="some",
    files=(
        File(path="some/__init__.py", data=b"def main():\n    return 0\n"),
        File(path="some/lib.so", data=noise(700_000) * 3, mode=0o755),
        File(path="some/stored.bin", data=noise(3_000_001), stored=True),
        File(path="some/empty", data=b""),
        File(path="some/tests/test_some.py", data=b"assert True\n"),
        File(path="some-1.0.data/scripts/some", data=b"#!python\nprint(1)\n"),
    ),
    console=(("tool", "some:main"),),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(SPEC, tmp_path_factory.mktemp("wheel"))


def task_of(wheel: Path, folder: Path, locked: LockedWheel | None = None, **more: Any) -> Task:
    """The task to make the layer of *wheel*, with a cache and the output in *folder*."""
    return Task(
        slot=0,
        inputs=(WheelInput(wheel=locked or locked_wheel(wheel), path=wheel),),
        cache=more.pop("cache", folder / "cache"),
        python=ImagePython.of_base("3.11.2"),
        interpreter=(sys.executable,),
        out=folder / "out",
        **more,
    )


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the wheel's entries that were decompressed."""
    inflated_names: list[str] = []
    real = content.inflate

    def recording(*args: object) -> object:
        inflated_names.append(args[1].name)  # type: ignore[attr-defined]
        return real(*args)  # type: ignore[arg-type]

    for module in (content, splice):
        monkeypatch.setattr(module, "inflate", recording)
    return inflated_names


def test_the_same_bytes_without_inflating(wheel: Path, tmp_path: Path, inflated: list[str]) -> None:
    """Only sources without cached bytecode, and files that an installer reads, are decompressed."""
    first = make_layer(task_of(wheel, tmp_path, cache=tmp_path / "one"))
    blob = (tmp_path / "out").read_bytes()
    assert "some/lib.so" in inflated

    for cache, looked in (("one", set()), ("two", {"some/__init__.py", "some/tests/test_some.py"})):
        inflated.clear()
        assert make_layer(task_of(wheel, tmp_path, cache=tmp_path / cache, recorded=first)) == first
        assert (tmp_path / "out").read_bytes() == blob
        assert {name for name in inflated if ".dist-info/" not in name} == looked | {
            "some-1.0.data/scripts/some"
        }


def test_a_layer_of_another_python_has_packed_headers(wheel: Path, tmp_path: Path) -> None:
    """It has no bytecode of tests and is smaller; with a record it is the same. Other files are unchanged."""
    own = make_layer(task_of(wheel, tmp_path, cache=tmp_path / "one"))
    stored = tree_of_layer((tmp_path / "out").read_bytes())
    work = replace(
        task_of(wheel, tmp_path, cache=tmp_path / "one"), python=ImagePython(version="3.11.9", folder="3.10")
    )
    packed = make_layer(work)
    blob = (tmp_path / "out").read_bytes()
    tree = {path.replace("python3.10", "python3.11"): item for path, item in tree_of_layer(blob).items()}

    left_out = {path for path in stored if "/tests/__pycache__" in path}
    assert len(left_out) == 2  # __pycache__ and the .pyc file
    assert stored.keys() - tree.keys() == left_out
    same = [path for path in tree if not path.endswith((".pyc", "RECORD"))]
    assert all(tree[path] == stored[path] for path in same)
    assert packed.size < own.size - 5_000
    assert make_layer(replace(work, recorded=packed)) == packed
    assert (tmp_path / "out").read_bytes() == blob


@pytest.mark.parametrize("wrong", [{"digest": NOT_ZERO}, {"size": 1}], ids=["another digest", "another size"])
def test_a_layer_that_differs_from_the_record_is_fully_verified(
    wheel: Path, tmp_path: Path, inflated: list[str], wrong: dict[str, object]
) -> None:
    """The record is then ignored, and the layer that was built is the result."""
    truth = make_layer(task_of(wheel, tmp_path, cache=tmp_path / "one"))
    inflated.clear()
    recorded = replace(truth, diff_id=NOT_ZERO, unpacked=7, **wrong)
    assert make_layer(task_of(wheel, tmp_path, cache=tmp_path / "one", recorded=recorded)) == truth
    assert "some/lib.so" in inflated


def test_a_changed_wheel_is_refused_with_a_record(wheel: Path, tmp_path: Path) -> None:
    """The wheel's hash is checked even if the layer is recorded."""
    truth = make_layer(task_of(wheel, tmp_path, cache=tmp_path / "one"))
    bad = tmp_path / wheel.name
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    work = task_of(wheel, tmp_path, cache=tmp_path / "one", recorded=truth)
    with pytest.raises(BadWheel, match="hash mismatch"):
        make_layer(replace(work, inputs=(replace(work.inputs[0], path=bad),)))


@settings(max_examples=settings.default.max_examples // 3)
@given(pieces=st.lists(st.integers(1, 900_000), min_size=1, max_size=12))
def test_the_layer_does_not_depend_on_download_chunks(
    arriving: Callable[[list[int]], bytes], complete_layer: bytes, pieces: list[int]
) -> None:
    """A large stored entry is divided into several gzip members, whatever the sizes of reads are."""
    assert arriving(pieces) == complete_layer


@pytest.fixture(scope="module")
def complete_layer(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    make_layer(task_of(wheel, folder))
    return (folder / "out").read_bytes()


@pytest.fixture(scope="module")
def arriving(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[int]], bytes]:
    """A function that builds the layer while a thread appends pieces of these lengths to the wheel."""
    folder = tmp_path_factory.mktemp("arriving")
    data = wheel.read_bytes()

    def run(pieces: list[int]) -> bytes:
        part = folder / "part"
        part.write_bytes(b"")

        def feed() -> None:
            at = turn = 0
            with part.open("ab", buffering=0) as file:
                while at < len(data):
                    at += file.write(data[at : at + pieces[turn % len(pieces)] + 60_000])
                    turn += 1
                    time.sleep(0)

        work = task_of(wheel, folder)
        thread = threading.Thread(target=feed)
        thread.start()
        item = replace(work.inputs[0], path=part, tail=data[-70_000:])
        make_layer(replace(work, inputs=(item,)))
        thread.join()
        return (folder / "out").read_bytes()

    return run


def recorded_layers(built: BuildResult) -> tuple[ImageLayer, ...]:
    return built.image.layers[:-2]  # above them are the base and the overlay


def test_a_build_from_a_recorded_lock(tmp_path: Path) -> None:
    """An empty cache gives the same image. Layers that only the lock knows are not recorded again."""
    wheels = small_wheels(tmp_path / "wheels")
    plain = planned_cell(wheels)
    first = build(plain, tmp_path / "one", tmp_path / "layout1", FakeIndex(wheels))
    layers = recorded_layers(first)
    second = build(planned_cell(wheels, layers), tmp_path / "two", tmp_path / "layout2", FakeIndex(wheels))

    assert second.image.manifest == first.image.manifest
    assert known_layers(plain.locked, Store(tmp_path / "two")) is None


def test_a_lock_that_has_some_layers_gets_the_others(tmp_path: Path) -> None:
    """The layers in the lock stay as they are; a build records only the missing ones."""
    wheels = small_wheels(tmp_path / "wheels")
    plain = planned_cell(wheels)
    built = build(plain, tmp_path / "cache", tmp_path / "layout", FakeIndex(wheels))
    first, *others = recorded_layers(built)
    of_lock = replace(first, blob=replace(first.blob, diff_id=NOT_ZERO))
    store = Store(tmp_path / "cache")

    assert known_layers(plain.locked, store) == (first, *others)
    assert known_layers(replace(plain.locked, layers=(of_lock,)), store) == (of_lock, *others)


def test_records_of_a_lock_are_not_used_for_another(tmp_path: Path) -> None:
    """A wrong diff_id in one lock does not affect images of other locks."""
    wheels = small_wheels(tmp_path / "wheels")
    plain = planned_cell(wheels)
    first = build(plain, tmp_path / "one", tmp_path / "layout", FakeIndex(wheels))
    layers = recorded_layers(first)
    lying = tuple(replace(layer, blob=replace(layer.blob, diff_id=NOT_ZERO)) for layer in layers)

    cache = tmp_path / "two"
    build(planned_cell(wheels, lying), cache, tmp_path / "layout2", FakeIndex(wheels))
    for unchanged in (planned_cell(wheels, layers), plain):
        built = build(unchanged, cache, tmp_path / "layout3", FakeIndex(wheels))
        assert built.image.manifest == first.image.manifest
