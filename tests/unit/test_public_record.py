"""What is on public record becomes a lock: which cells, what it holds, what is made of sizes nobody told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import reports
from tests.gridcase import FACTS, MATRIX, answer
from torchkiln.build import prerequisites
from torchkiln.build.environment import Environment
from torchkiln.build.known import forecast
from torchkiln.build.prefetch import measured, missing_wheels
from torchkiln.build.prerequisites import BaseSources
from torchkiln.docker import build as docker_build
from torchkiln.docker.bake import bake
from torchkiln.docker.build_locked import build_on_docker
from torchkiln.docker.daemon import Engine
from torchkiln.errors import BuildFailed, Stale
from torchkiln.gate.cell_state import CellRecord, State, state
from torchkiln.lock.file import how_to_restore
from torchkiln.lock.lock import from_json, how_to_lock, load_locked, lock, lock_digest, to_json
from torchkiln.lock.request import PublicRecord, System, Versions
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.public_record import on_record, recorded
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution, Source
from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import ImagePlan
from torchkiln.model.progress import Silent
from torchkiln.plan.load import plan_locked
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.0.1-cuda11.8-cudnn8-runtime"
NAMES = ("torch", "torchaudio", "torchvision")
BUNDLED, SMALL = answer("2.0.1", "11.8"), answer("2.2.2", "11.8")
KEPT = load_locked(ROOT / "images", TAG)
ANSWERS = [resolve(cell, MATRIX, FACTS) for cell in all_cells(MATRIX) if cell.flavor == "runtime"]


def given(cell: Resolution) -> tuple[KnownWheel, ...]:
    assert cell.build
    return on_record(FACTS, cell.build, cell.cell.python)


class Shelf:
    """An index that gives what it was given, and numpy; it notes what was asked."""

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        self.wanted = wanted
        unseen = [(one.name, one.version, 0) for one in wanted.known]
        seen = [(one.name, one.version, 5) for one in given(BUNDLED)]
        found = (_wheel(*told, Source.PYTORCH) for told in unseen or seen)
        return (_wheel("numpy", "1.26.4", 3, Source.DEFAULT), *found)


def _wheel(name: str, version: str, size: int, index: Source) -> LockedWheel:
    known = {one.name: one.sha256 for one in given(BUNDLED)}
    filename = f"{name}-{version}-cp311-cp311-linux_x86_64.whl"
    sha256 = known.get(name, "a" * 64)
    return LockedWheel(name=name, version=version, filename=filename, sha256=sha256, size=size, index=index)


def locked(shelf: Shelf, *record: KnownWheel, previous: LockedCell | None = None) -> LockedCell:
    return lock(
        BUNDLED,
        shelf,
        System(base=KEPT.base),
        Versions(as_of="2026-11-21", previous=previous),
        bound=("torch", "torchvision", "torchaudio", "triton"),
        untrusted=[Source.PYTORCH],
        record=PublicRecord(
            torch=recorded(FACTS, BUNDLED.build, "3.11") if BUNDLED.build else None, known=record
        ),
    )


# --- the record ---------------------------------------------------------------------------------------------


def test_a_whole_set_is_on_record_for_these_cells_and_for_no_others() -> None:
    """Of the others torch's hash at most. Those of ubuntu22.04 lack a base."""
    whole = {tag_of(one) for one in ANSWERS if one.build and given(one)}
    assert whole == {
        TAG,
        f"{TAG}-ubuntu22.04",
        "2.2.2-cuda11.8-cudnn8-runtime",
        "2.2.2-cuda11.7-cudnn8-runtime",
    }
    assert sum(bool(one.build and recorded(FACTS, one.build, one.cell.python)) for one in ANSWERS) == 16


def test_what_they_ask_for_is_what_the_facts_know() -> None:
    """A bundled wheel has CUDA's libraries inside; a log of pip shows the very set of 2.0.1."""
    bundled, small = ({one.name: one for one in given(cell)} for cell in (BUNDLED, SMALL))
    log = {"filelock", "typing-extensions", "sympy", "networkx", "jinja2", "triton==2.0.0"}
    assert set(bundled["torch"].requires) == log
    assert bundled["torchvision"].requires == ("numpy", "requests", "pillow!=8.3.*,>=5.3.0", "torch==2.0.1")
    assert bundled["torchaudio"].requires == ("torch==2.0.1",)
    pins = {f"{name}=={version}" for name, version in FACTS.cu118_pins}
    more = {"nvidia-cudnn-cu11==8.7.0.84", "nvidia-nccl-cu11==2.19.3", "triton==2.2.0"}
    more |= {"fsspec", "typing-extensions>=4.8.0"}
    assert {*small["torch"].requires} == pins | more | (log - {"triton==2.0.0", "typing-extensions"})
    assert small["torch"].filename == "torch-2.2.2+cu118-cp311-cp311-linux_x86_64.whl"


# --- the lock -----------------------------------------------------------------------------------------------


def test_no_index_is_asked_for_what_is_on_record() -> None:
    """Neither by requirement nor to keep it; and an index that was not asked does not count."""
    shelf = Shelf()
    before = locked(shelf)
    assert (before.by_record, before.untrusted) == ((), True)
    found = locked(shelf, *given(BUNDLED), previous=before)

    assert not [text for text in shelf.wanted.requirements if text.startswith("torch")]
    assert {"numpy", "jupyterlab"} <= {*shelf.wanted.requirements}
    assert (shelf.wanted.bound, shelf.wanted.keep) == ((), (("numpy", "1.26.4"),))
    assert (found.by_record, found.untrusted) == (NAMES, False)
    again = locked(shelf, previous=found)
    assert (again.by_record, [one.size for one in again.wheels]) == ((), [3, 5, 5, 5])
    assert lock_digest(found) != lock_digest(again)


def test_the_file_has_no_size_where_none_is_known() -> None:
    data = to_json(KEPT)
    assert from_json(data) == KEPT
    document = json.loads(data)
    assert document["by_record"] == [*NAMES]
    assert [one["name"] for one in document["wheels"] if "size" not in one] == [*NAMES]


def _without(name: str) -> Callable[[LockedCell], LockedCell]:
    def change(cell: LockedCell) -> LockedCell:
        return replace(cell, by_record=tuple(one for one in cell.by_record if one != name))

    return change


def _as(name: str, **other: object) -> Callable[[LockedCell], LockedCell]:
    def change(cell: LockedCell) -> LockedCell:
        wheels = (replace(one, **other) if one.name == name else one for one in cell.wheels)  # type: ignore[arg-type]
        return replace(cell, wheels=tuple(wheels))

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_without("torch"), id="a wheel without a size that is not named"),
        pytest.param(_as("torch", size=7), id="a name of a wheel with a size"),
        pytest.param(_as("numpy", size=0), id="a wheel of the default index without a size"),
        pytest.param(_as("torch", index=Source.DEFAULT), id="as if the default index had it"),
    ],
)
def test_a_lock_that_is_at_odds_with_itself_is_refused(change: Callable[[LockedCell], LockedCell]) -> None:
    with pytest.raises(Stale, match="by_record: must list the wheels of PyTorch's index that have no size"):
        from_json(to_json(change(KEPT)))


def test_whoever_mends_it_is_told_the_same_way() -> None:
    words = "torchkiln lock --torch 2.0.1 --cuda 11.8"
    assert how_to_lock(KEPT.resolution.cell, by_record=True) == f"{words} --public-record"
    assert how_to_lock(KEPT.resolution.cell) == words
    assert how_to_restore(json.loads(to_json(KEPT)), "x").endswith(" --public-record")


# --- what comes of it ---------------------------------------------------------------------------------------


class Scale:
    """Tells sizes as an index would."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def size(self, wheel: LockedWheel) -> int:
        self.asked.append(wheel.name)
        return 11

    def tail(self, *_: object, **__: object) -> bytes | None:
        raise AssertionError

    def fetch(self, *_: object, **__: object) -> None:
        raise AssertionError


def test_a_build_asks_for_the_sizes_that_the_cache_does_not_know(tmp_path: Path) -> None:
    """And the plan goes on to be that of its lock."""
    store, scale, plan = Store(tmp_path), Scale(), plan_locked(KEPT, MATRIX, FACTS)
    torch = next(one for one in KEPT.wheels if one.name == "torch")
    assert not store.has_wheel(torch)
    place = store.wheel(torch)
    place.parent.mkdir(parents=True)
    place.touch()
    assert not store.has_wheel(torch)
    place.write_bytes(b"four")
    assert store.has_wheel(torch)

    found = measured(plan, store, scale)

    sizes = {one.name: one.size for layer in found.made for one in layer.inputs if one.name in NAMES}
    assert sizes == {"torch": 4, "torchvision": 11, "torchaudio": 11}
    assert sorted(scale.asked) == ["torchaudio", "torchvision"]
    assert replace(found, layers=plan.layers) == plan
    assert measured(found, store, scale) is found


def test_a_docker_engine_is_handed_the_sizes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded one is in tests/integration/test_public_record.py."""
    handed: list[ImagePlan] = []

    def build(plan: ImagePlan, *_: object, **__: object) -> docker_build.EngineImage:
        handed.append(plan)
        raise BuildFailed("far enough")

    monkeypatch.setattr("torchkiln.docker.build.build", build)
    monkeypatch.setattr(prerequisites, "provide", lambda plan, *_, **__: (plan.locked, ()))
    with pytest.raises(BuildFailed, match="far enough"):
        build_on_docker(
            KEPT,
            MATRIX,
            FACTS,
            Engine(host="unix:///nowhere", version="26.1", buildx=(0, 13)),
            Environment(store=Store(tmp_path), fetcher=Scale(), observer=Silent()),
            sources=BaseSources(),
            options=docker_build.BuildxOptions(),
        )
    assert all(one.size for layer in handed[0].made for one in layer.inputs)


def test_until_then_nobody_makes_one_up(tmp_path: Path) -> None:
    plan, store = plan_locked(KEPT, MATRIX, FACTS), Store(tmp_path)
    unknown = [layer.title for layer in plan.layers if layer.size is None]
    assert [title.split()[0] for title in unknown] == ["torch", "packages:"]
    told = forecast(plan, store)
    assert told["of_unknown_size"] == 3
    assert told["download_bytes"] == sum(one.size for one in KEPT.wheels)
    assert not {one.name for one in missing_wheels(plan, store)} & {*NAMES}
    assert "of_unknown_size" not in forecast(plan_locked(reports.LOCKED, MATRIX, FACTS), store)


def test_bake_has_a_target_of_it_in_no_group() -> None:
    target = "2-0-1-cuda11-8-cudnn8-runtime"
    written = json.loads(bake([plan_locked(one, MATRIX, FACTS) for one in (KEPT, reports.LOCKED)], "here"))
    assert target in written["target"]
    assert not [name for name, group in written["group"].items() if target in group["targets"]]
    assert written["group"]["default"]["targets"]


def test_the_grid_says_that_it_is_to_be_built_elsewhere() -> None:
    kept = CellRecord(locked=KEPT, image=None)
    assert state(KEPT.resolution, kept, Policy(), reports.SUITE) is State.RECORDED
    seen = replace(kept, locked=replace(KEPT, by_record=()))
    assert state(KEPT.resolution, seen, Policy(), reports.SUITE) is State.LOCKED
