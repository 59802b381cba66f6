"""Images with components by the embedded engine, in small: the plain image below, a program above, faults."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cells import build, planned_cell, small_wheels
from tests.layers import tree_of_layer
from tests.planned import FACTS, LOCK_DIGEST, MATRIX
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.build.cache_claims import build_needs
from torchkiln.build.known import forecast, known_layers
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedComponent, LockedWheel
from torchkiln.model.plan import ImagePlan
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.plan import plan
from torchkiln.store.store import Store

SITE = f"opt/venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
SCRIPT = b"#!/bin/sh\necho 2.9.0\n" + b"# what does not matter\n" * 400


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "micromamba-linux-64"
    path.write_bytes(SCRIPT)
    return path


def more(tmp_path: Path) -> list[Path]:
    """The wheels that `transformers` adds here."""
    specs = (
        WheelSpec(name=name, files=(File(path=f"{name}/__init__.py", data=b"there = True\n"),))
        for name in ("tokenizers", "transformers")
    )
    return [write_wheel(spec, tmp_path / "more") for spec in specs]


def with_components(below: ImagePlan, added: list[Path], program: Path) -> ImagePlan:
    """The plan of *below*'s lock with conda and transformers."""
    selection = Selection(torch=("2.7",), cuda=("12.1",), components=("conda", "transformers"))
    file = LockedWheel(
        name="micromamba",
        version="2.9.0",
        filename=program.name,
        sha256=hashlib.sha256(program.read_bytes()).hexdigest(),
        size=program.stat().st_size,
        index=Source.OWN,
    )
    new = [locked_wheel(wheel) for wheel in added]
    cell = replace(
        below.locked,
        resolution=resolve(select(selection, MATRIX)[0], MATRIX, FACTS),
        wheels=tuple(sorted((*below.locked.wheels, *new), key=lambda wheel: wheel.name)),
        components=(
            LockedComponent(name="conda", wheels=(), program=file),
            LockedComponent(name="transformers", wheels=tuple(wheel.name for wheel in new)),
        ),
    )
    with patch("torchkiln.plan.layers.BIG_WHEEL", 100_000):
        return plan(cell, (), aliases=(), lock_digest=LOCK_DIGEST)


def test_a_component_costs_only_what_it_adds(wheels: list[Path], program: Path, tmp_path: Path) -> None:
    """The plain image's layers are there, by the same digests; two are made; again, nothing is."""
    below, added, cache = planned_cell(wheels), more(tmp_path), tmp_path / "cache"
    plain = build(below, cache, tmp_path / "layout", FakeIndex(wheels))
    above, index = with_components(below, added, program), FakeIndex([*added, program])
    expected_work = forecast(above, Store(cache))
    built = build(above, cache, tmp_path / "layout", index)
    again = build(above, cache, tmp_path / "layout", FakeIndex([]))

    shared = len(plain.image.layers) - 1
    assert built.image.layers[:shared] == plain.image.layers[:shared]
    assert [layer.title for layer in built.image.layers[shared:-1]] == [
        "micromamba 2.9.0",
        "with transformers: tokenizers 1.0, transformers 1.0",
    ]
    assert sorted(index.fetched) == sorted([program.name, *(wheel.name for wheel in added)])
    assert (expected_work["downloads"], [item["do"] for item in expected_work["layers"]][shared:]) == (
        3,
        ["make", "convert", "make"],
    )
    assert again.reused == tuple(layer.title for layer in again.image.layers)
    assert again.image == built.image
    assert validate(tmp_path / "layout") == ()


def test_content_of_the_programs_layer(wheels: list[Path], program: Path, tmp_path: Path) -> None:
    above = with_components(planned_cell(wheels), more(tmp_path), program)
    built = build(
        above, tmp_path / "cache", tmp_path / "layout", FakeIndex([*wheels, *more(tmp_path), program])
    )
    layer = next(item for item in built.image.layers if item.title == "micromamba 2.9.0")
    tree = tree_of_layer(Store(tmp_path / "cache").blob(layer.blob.digest).read_bytes())

    binary = tree["opt/conda/condabin/micromamba"]
    assert (binary.data, binary.mode) == (SCRIPT, 0o755)
    link = tree["opt/conda/condabin/conda"]
    assert (link.kind, link.data) == ("link", b"micromamba")
    assert tree["opt/conda/conda-meta/history"].data == b""
    assert (tree["opt/conda/envs"].kind, tree["opt/conda/envs"].mode) == ("folder", 0o1777)
    assert tree["opt/conda"].mode == 0o755
    assert not [path for path in tree if path.startswith(("opt/venv", "usr/"))]


def test_the_same_digest_from_a_cold_cache(wheels: list[Path], program: Path, tmp_path: Path) -> None:
    added = more(tmp_path)
    above = with_components(planned_cell(wheels), added, program)
    found = {
        build(
            above, tmp_path / name, tmp_path / f"{name} layout", FakeIndex([*wheels, *added, program])
        ).image.manifest
        for name in ("one", "two")
    }
    assert len(found) == 1


def test_recorded_layers_are_checked_and_plain_ones_are_not_read_again(
    wheels: list[Path], program: Path, tmp_path: Path
) -> None:
    """A lock derived from the plain one has its layers; `--record` adds those above."""
    below, added, cache = planned_cell(wheels), more(tmp_path), tmp_path / "cache"
    plain = build(below, cache, tmp_path / "layout", FakeIndex(wheels))
    above = with_components(below, added, program)
    build(above, cache, tmp_path / "layout", FakeIndex([*added, program]))
    with patch("torchkiln.plan.layers.BIG_WHEEL", 100_000):
        known = known_layers(replace(above.locked, layers=plain.image.layers[1:-1]), Store(cache))
    assert known is not None
    assert [item.title for item in known] == [layer.title for layer in above.layers[1:-1]]

    wrong = replace(known[-2], blob=replace(known[-2].blob, digest=Digest("sha256:" + "0" * 64)))
    with_wrong_layer = replace(above, locked=replace(above.locked, layers=(*known[:-2], wrong, known[-1])))
    with pytest.raises(BuildFailed, match=r"layer 'micromamba 2\.9\.0': expected sha256:"):
        build(with_wrong_layer, cache, tmp_path / "layout", FakeIndex([*added, program]))


def test_another_file_is_refused_and_leaves_nothing(
    wheels: list[Path], program: Path, tmp_path: Path
) -> None:
    above, cache = with_components(planned_cell(wheels), more(tmp_path), program), tmp_path / "cache"
    program.write_bytes(SCRIPT[:-1] + b"!")
    with pytest.raises(BadWheel, match="micromamba-linux-64"):
        build(above, cache, tmp_path / "layout", FakeIndex([*wheels, *more(tmp_path), program]))
    assert not list((cache / "wheels").rglob("micromamba*"))
    assert not (tmp_path / "layout" / "index.json").exists()


def test_a_partial_download_of_the_program_is_resumed(
    wheels: list[Path], program: Path, tmp_path: Path
) -> None:
    """A valid beginning is continued; another one is discarded and downloaded again."""
    above, cache = with_components(planned_cell(wheels), more(tmp_path), program), tmp_path / "cache"
    file = above.locked.components[0].program
    assert file is not None
    for start in (SCRIPT[:100], b"something else"):
        store = Store(cache)
        store.part(file).parent.mkdir(parents=True, exist_ok=True)
        store.part(file).write_bytes(start)
        store.wheel(file).unlink(missing_ok=True)
        for record in (cache / "records" / "layers").glob("*.json"):
            record.unlink()
        index = FakeIndex([*wheels, *more(tmp_path), program])
        built = build(above, cache, tmp_path / "layout", index)
        assert store.wheel(file).read_bytes() == SCRIPT
        assert index.sent[program.name] == len(SCRIPT) - len(start) + (len(SCRIPT) if b"else" in start else 0)
        assert len(built.image.layers) == len(above.layers)


def test_a_running_build_claims_the_programs_file(wheels: list[Path], program: Path, tmp_path: Path) -> None:
    """So that `cache prune` beside it leaves it alone."""
    above = with_components(planned_cell(wheels), more(tmp_path), program)
    file = above.locked.components[0].program
    assert file is not None
    assert f"wheels/{file.sha256}/{file.filename}" in build_needs(above)
