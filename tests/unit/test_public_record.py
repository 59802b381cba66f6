"""Locks from the public record: for which cells, what they contain, and their unknown sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import reports
from tests.planned import FACTS, MATRIX, answer
from torchkiln.docker import build as docker_build
from torchkiln.docker.build_locked import build_on_docker
from torchkiln.docker.dockerfile import bake
from torchkiln.engine import prerequisites
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import forecast
from torchkiln.engine.prefetch import measured, missing_wheels
from torchkiln.engine.prerequisites import BaseSources
from torchkiln.errors import BuildFailed, Stale
from torchkiln.gate.cell_state import CellRecord, State, state
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.lock import PublicRecord, System, Versions, how_to_lock, load_locked, lock
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


def recorded_wheels(cell: Resolution) -> tuple[KnownWheel, ...]:
    assert cell.build
    return on_record(FACTS, cell.build, cell.cell.python)


class Shelf:
    """A fake index that returns the record's wheels and numpy, and records the requests."""

    def wheels(self, request: IndexRequest) -> tuple[LockedWheel, ...]:
        self.request = request
        unseen = [(item.name, item.version, 0) for item in request.known]
        measured = [(wheel.name, wheel.version, 5) for wheel in recorded_wheels(BUNDLED)]
        found = (_wheel(*fields, Source.PYTORCH) for fields in unseen or measured)
        return (_wheel("numpy", "1.26.4", 3, Source.DEFAULT), *found)


def _wheel(name: str, version: str, size: int, index: Source) -> LockedWheel:
    known = {wheel.name: wheel.sha256 for wheel in recorded_wheels(BUNDLED)}
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


def test_complete_sets_are_on_record_only_for_these_cells() -> None:
    """For other cells, at most torch's hash is recorded. ubuntu22.04 has no committed base."""
    complete = {tag_of(item) for item in ANSWERS if item.build and recorded_wheels(item)}
    assert complete == {
        TAG,
        f"{TAG}-ubuntu22.04",
        "2.2.2-cuda11.8-cudnn8-runtime",
        "2.2.2-cuda11.7-cudnn8-runtime",
    }
    assert sum(bool(item.build and recorded(FACTS, item.build, item.cell.python)) for item in ANSWERS) == 20


def test_their_requirements_match_the_facts() -> None:
    """A bundled wheel contains CUDA's libraries. For torch 2.0.1, a log of pip has the same requirements."""
    bundled, small = ({wheel.name: wheel for wheel in recorded_wheels(cell)} for cell in (BUNDLED, SMALL))
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


def test_recorded_wheels_are_not_requested_from_an_index() -> None:
    """They are neither requirements nor kept versions. An index without wheels in the lock has no effect."""
    shelf = Shelf()
    before = locked(shelf)
    assert (before.by_record, before.untrusted) == ((), True)
    found = locked(shelf, *recorded_wheels(BUNDLED), previous=before)

    assert not [text for text in shelf.request.requirements if text.startswith("torch")]
    assert {"numpy", "jupyterlab"} <= {*shelf.request.requirements}
    assert (shelf.request.bound, shelf.request.keep) == ((), (("numpy", "1.26.4"),))
    assert (found.by_record, found.untrusted) == (NAMES, False)
    again = locked(shelf, previous=found)
    assert (again.by_record, [wheel.size for wheel in again.wheels]) == ((), [3, 5, 5, 5])
    assert lock_digest(found) != lock_digest(again)


def test_unknown_sizes_are_omitted_in_the_file() -> None:
    data = to_json(KEPT)
    assert from_json(data) == KEPT
    document = json.loads(data)
    assert document["by_record"] == [*NAMES]
    assert [wheel["name"] for wheel in document["wheels"] if "size" not in wheel] == [*NAMES]


def _without(name: str) -> Callable[[LockedCell], LockedCell]:
    def change(cell: LockedCell) -> LockedCell:
        return replace(cell, by_record=tuple(item for item in cell.by_record if item != name))

    return change


def _as(name: str, **changes: object) -> Callable[[LockedCell], LockedCell]:
    def change(cell: LockedCell) -> LockedCell:
        wheels = (replace(wheel, **changes) if wheel.name == name else wheel for wheel in cell.wheels)  # type: ignore[arg-type]
        return replace(cell, wheels=tuple(wheels))

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_without("torch"), id="a wheel without a size, missing in by_record"),
        pytest.param(_as("torch", size=7), id="a wheel with a size, listed in by_record"),
        pytest.param(_as("numpy", size=0), id="a wheel of the default index without a size"),
        pytest.param(_as("torch", index=Source.DEFAULT), id="a wheel of the default index in by_record"),
    ],
)
def test_an_inconsistent_lock_is_refused(change: Callable[[LockedCell], LockedCell]) -> None:
    with pytest.raises(Stale, match="by_record: must list the wheels of PyTorch's index that have no size"):
        from_json(to_json(change(KEPT)))


def test_the_hint_is_to_lock_again_by_record() -> None:
    words = "torchkiln lock --torch 2.0.1 --cuda 11.8"
    assert how_to_lock(KEPT.resolution.cell, by_record=True) == f"{words} --public-record"
    assert how_to_lock(KEPT.resolution.cell) == words


# --- the results ---------------------------------------------------------------------------------------


class Scale:
    """A fake index that returns the size of each wheel."""

    def __init__(self) -> None:
        self.measured_names: list[str] = []

    def size(self, wheel: LockedWheel) -> int:
        self.measured_names.append(wheel.name)
        return 11

    def tail(self, *_: object, **__: object) -> bytes | None:
        raise AssertionError

    def fetch(self, *_: object, **__: object) -> None:
        raise AssertionError


def test_a_build_requests_sizes_missing_in_the_cache(tmp_path: Path) -> None:
    """Apart from these sizes, the plan does not change."""
    store, scale, plan = Store(tmp_path), Scale(), plan_locked(KEPT, MATRIX, FACTS)
    torch = next(wheel for wheel in KEPT.wheels if wheel.name == "torch")
    assert not store.has_wheel(torch)
    place = store.wheel(torch)
    place.parent.mkdir(parents=True)
    place.touch()
    assert not store.has_wheel(torch)
    place.write_bytes(b"four")
    assert store.has_wheel(torch)

    found = measured(plan, store, scale)

    sizes = {item.name: item.size for layer in found.made for item in layer.inputs if item.name in NAMES}
    assert sizes == {"torch": 4, "torchvision": 11, "torchaudio": 11}
    assert sorted(scale.measured_names) == ["torchaudio", "torchvision"]
    assert replace(found, layers=plan.layers) == plan
    assert measured(found, store, scale) is found


def test_a_docker_engine_gets_the_sizes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/integration/test_public_record.py tests the embedded engine."""
    handed: list[ImagePlan] = []

    def build(plan: ImagePlan, *_: object, **__: object) -> docker_build.EngineImage:
        handed.append(plan)
        raise BuildFailed("far enough")

    monkeypatch.setattr("torchkiln.docker.build_locked.build", build)
    monkeypatch.setattr(prerequisites, "provide", lambda plan, *_, **__: (plan.locked, ()))
    with pytest.raises(BuildFailed, match="far enough"):
        build_on_docker(
            KEPT,
            MATRIX,
            FACTS,
            Environment(store=Store(tmp_path), fetcher=Scale(), observer=Silent()),
            sources=BaseSources(),
            options=docker_build.BuildxOptions(),
        )
    assert all(item.size for layer in handed[0].made for item in layer.inputs)


def test_before_a_build_no_size_is_invented(tmp_path: Path) -> None:
    plan, store = plan_locked(KEPT, MATRIX, FACTS), Store(tmp_path)
    unknown = [layer.title for layer in plan.layers if layer.size is None]
    assert [title.split()[0] for title in unknown] == ["torch", "packages:"]
    fields = forecast(plan, store)
    assert fields["of_unknown_size"] == 3
    assert fields["download_bytes"] == sum(wheel.size for wheel in KEPT.wheels)
    assert not {wheel.name for wheel in missing_wheels(plan, store)} & {*NAMES}
    assert "of_unknown_size" not in forecast(plan_locked(reports.LOCKED, MATRIX, FACTS), store)


def test_bake_has_a_target_of_it_in_no_group() -> None:
    target = "2-0-1-cuda11-8-cudnn8-runtime"
    written = json.loads(bake([plan_locked(item, MATRIX, FACTS) for item in (KEPT, reports.LOCKED)], "here"))
    assert target in written["target"]
    assert not [name for name, group in written["group"].items() if target in group["targets"]]
    assert written["group"]["default"]["targets"]


def test_the_grid_shows_that_it_is_built_elsewhere() -> None:
    record = CellRecord(locked=KEPT, image=None)
    assert state(KEPT.resolution, record, Policy(), reports.SUITE) is State.RECORDED
    measured = replace(record, locked=replace(KEPT, by_record=()))
    assert state(KEPT.resolution, measured, Policy(), reports.SUITE) is State.LOCKED
