"""The locks in images/: whole, silent about their maker, and minding the traps of old releases."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.gridcase import FACTS, MATRIX
from torchkiln.lock.lock import load_locked, requirements_txt, to_json
from torchkiln.matrix.public_record import on_record
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Source
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.untrusted import is_untrusted
from torchkiln.util.places import ROOT

IMAGES = ROOT / "images"
SCHEMA = json.loads((ROOT / "torchkiln/data/lock.schema.json").read_bytes())
COMMITTED = sorted(path.parent.name for path in IMAGES.glob("*/lock.json"))


@pytest.mark.parametrize("tag", COMMITTED)
def test_a_committed_lock_is_whole_and_says_nothing_of_its_maker(tag: str) -> None:
    data = (IMAGES / tag / "lock.json").read_bytes()
    found = load_locked(IMAGES, tag)
    jsonschema.validate(json.loads(data), SCHEMA)

    assert to_json(found) == data
    assert (IMAGES / tag / "requirements.txt").read_bytes() == requirements_txt(found)
    assert b"://" not in data
    assert b"/work" not in data
    assert not is_untrusted(found)


@pytest.mark.parametrize("tag", COMMITTED)
def test_a_committed_lock_of_another_index_holds_what_is_on_record(tag: str) -> None:
    found = load_locked(IMAGES, tag)
    cell, build = found.resolution.cell, found.resolution.build
    assert build
    known = {one.name: (one.filename, one.sha256) for one in on_record(FACTS, build, cell.python)}
    mine = {one.name: (one.filename, one.sha256) for one in found.wheels if one.index is Source.PYTORCH}
    assert mine == known
    assert {*found.by_record} == mine.keys()


def test_every_cell_of_the_default_index_is_committed_and_minds_the_traps() -> None:
    found = [resolve(cell, MATRIX, FACTS) for cell in all_cells(MATRIX) if cell.os == DEFAULT_OS]
    of_default = {tag_of(one) for one in found if one.build and one.build.source is Source.DEFAULT}
    lockable = {tag_of(one) for one in found if one.lockable}
    by_record = {tag for tag in COMMITTED if load_locked(IMAGES, tag).by_record}
    assert lockable <= {*COMMITTED} - by_record <= of_default
    for tag in COMMITTED:
        versions = {one.name: one.version for one in load_locked(IMAGES, tag).wheels}
        old = tag.startswith(("2.0.", "2.1.", "2.2."))
        assert versions["numpy"].startswith("1.26.") == old, tag
        if "cuda12.1" in tag and tag.startswith(("2.1.", "2.2.", "2.3.", "2.4.")):
            assert versions["nvidia-nvjitlink-cu12"] == "12.1.105"
        if tag.startswith(("2.0.", "2.1.")):
            assert int(versions["setuptools"].partition(".")[0]) < 70
    assert {"cmake", "lit", "wheel"} <= {one.name for one in load_locked(IMAGES, COMMITTED[0]).wheels}
