"""Wheels that arrive while a build waits for its base: begun early, gone on from, and never in the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.cells import build, planned_cell, small_wheels
from tests.unpublished import FakeIndex
from torchkiln.build.prefetch import fetching, missing_wheels
from torchkiln.errors import BuildFailed
from torchkiln.store.store import Store


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


def arrived(store: Store) -> dict[str, int]:
    """Bytes of each wheel that is on its way, by file name."""
    parts = store.root.glob("wheels/*/*.part")
    return {path.name.removesuffix(".part"): path.stat().st_size for path in parts}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_what_came_meanwhile_is_not_asked_for_again(wheels: list[Path], tmp_path: Path) -> None:
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


def test_a_build_goes_on_from_where_it_was_cut(wheels: list[Path], tmp_path: Path) -> None:
    """The base is there before the wheels are: none waits for them, and no byte comes twice."""
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


def test_who_fails_meanwhile_is_heard_and_the_downloads_end(wheels: list[Path], tmp_path: Path) -> None:
    cell, store = planned_cell(wheels), Store(tmp_path / "cache")
    index = FakeIndex(wheels, piece=100, pause=0.01)
    with (
        pytest.raises(BuildFailed, match="no base"),
        fetching(missing_wheels(cell, store), store, index),
    ):
        raise BuildFailed("no base")
    assert threads() == []


def test_a_wheel_that_cannot_be_had_is_told_by_the_build(wheels: list[Path], tmp_path: Path) -> None:
    cell, store = planned_cell(wheels), Store(tmp_path / "cache")
    index = FakeIndex(wheels, piece=100, broken={wheel.name: "the index is away" for wheel in wheels})
    with fetching(missing_wheels(cell, store), store, index):
        while threads() and len(index.fetched) < len(wheels):
            time.sleep(0.001)

    with pytest.raises(BuildFailed, match="the index is away"):
        build(cell, store.root, tmp_path / "layout", index)
