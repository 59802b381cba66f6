"""Locks by public record: made without PyTorch's index, built where there is one with those very bytes.

The real wheels cannot be reached from here: the real record's hashes are held to, and the whole way is gone
with those of a stand-in's small wheels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.standin.two_indexes import House, furnished, with_another_cache
from torchkiln.base import artefact
from torchkiln.lock.lock import load_locked, lock, save
from torchkiln.lock.request import PublicRecord, System, Versions
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.public_record import on_record
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Source
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # the base, where the cache has none

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
TAG = "2.0.1-cuda11.8-cudnn8-runtime"
SMALL = "2.2.2-cuda11.8-cudnn8-runtime"  # its wheel has CUDA's libraries beside it, not inside
CELL = ("--torch", "2.0.1", "--cuda", "11.8")
OTHER = ("--torch", "2.2.2", "--cuda", "11.8")
VERSIONS = ("2.0.1+cu118", "0.15.2+cu118", "2.0.2+cu118")
NAMES = ("torch", "torchaudio", "torchvision")
TOLD = "torch, torchaudio, torchvision by public record: built elsewhere, not here"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with furnished(tmp_path_factory.mktemp("record"), "2.0.1", "2.2.2") as found:
        yield found


@pytest.fixture(scope="module")
def recorded(house: House) -> House:
    """Both cells locked by the real record; nobody had asked PyTorch's index by then."""
    for cell, tag in ((CELL, TAG), (OTHER, SMALL)):
        ran = house.kiln("lock", *cell, "--public-record", index=None)
        assert (ran.returncode, ran.stdout) == (0, f"{tag}\n"), ran.stderr
        assert f"lock: {tag}: {TOLD}" in ran.stderr
        assert "and 3 of unknown size" in ran.stderr
    assert not [path for _, path, _ in house.server.asked if path.startswith("/whl/")]
    return house


def of_stand_in(house: House) -> Facts:
    """The facts, as if what is on record of 2.0.1 were the wheels of the stand-in."""
    release = FACTS.releases["2.0.1"]
    hashes = {
        name: hashlib.sha256(data).hexdigest()
        for (_, name, filename), data in house.server.files.items()
        if name in NAMES and "cp311-cp311-linux" in filename and filename.split("-")[1] in VERSIONS
    }
    known = tuple(("cu118", "cp311", name, sha256) for name, sha256 in hashes.items())
    return replace(FACTS, releases={**FACTS.releases, "2.0.1": replace(release, index_sha256=known)})


def test_the_lock_holds_the_recorded_hashes_and_the_default_index_gives_the_rest(recorded: House) -> None:
    """triton too, of which PyTorch's index has the same file; torch's namesake there is not looked at."""
    for tag, torch, triton in ((TAG, "2.0.1", "2.0.0"), (SMALL, "2.2.2", "2.2.0")):
        found = load_locked(recorded.images, tag)
        wheels = {one.name: one for one in found.wheels}
        known = {
            name: sha
            for variant, python, name, sha in FACTS.releases[torch].index_sha256
            if (variant, python) == ("cu118", "cp311")
        }

        assert found.by_record == NAMES
        assert {name: wheels[name].sha256 for name in NAMES} == known
        assert {one.name for one in found.wheels if one.index is Source.PYTORCH} == set(NAMES)
        assert {one.name for one in found.wheels if not one.size} == set(NAMES)
        assert wheels["torch"].filename == f"torch-{torch}+cu118-cp311-cp311-linux_x86_64.whl"
        assert (wheels["triton"].version, wheels["triton"].index) == (triton, Source.DEFAULT)
        assert wheels["numpy"].version == "1.26.4"
        assert "from-the-wrong-index" not in wheels
        assert not found.untrusted
    pins = dict(FACTS.cu118_pins)
    bundled, small = (load_locked(recorded.images, tag).wheels for tag in (TAG, SMALL))
    assert not [one.name for one in bundled if one.name.startswith("nvidia-")]
    assert pins.items() <= {one.name: one.version for one in small}.items()


def test_a_lock_by_record_is_fresh_and_the_same_again(recorded: House) -> None:
    before = (recorded.images / TAG / "lock.json").read_bytes()
    ran = recorded.kiln("lock", *CELL, "--check", index=None)
    assert (ran.returncode, "1 fresh" in ran.stderr) == (0, True), ran.stderr
    ran = recorded.kiln("lock", *CELL, "--public-record", index=None)
    assert (ran.returncode, "unchanged" in ran.stderr) == (0, True), ran.stderr
    assert (recorded.images / TAG / "lock.json").read_bytes() == before


def test_plan_dockerfile_list_and_explain_tell_of_it(recorded: House) -> None:
    assert "? MB  torch 2.0.1+cu118" in recorded.kiln("plan", *CELL, index=None).stdout
    ran = recorded.kiln("render", *CELL, index=None)
    assert ran.returncode == 0, ran.stderr
    known = load_locked(recorded.images, TAG).wheels
    asked = (recorded.images / TAG / "requirements.txt").read_text()
    assert all(f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" in asked for one in known)
    assert f"{TAG}  (locked by public record)" in recorded.kiln("list", *CELL, index=None).stdout
    listed = json.loads(recorded.kiln("list", *CELL, "--json", index=None).stdout)
    assert (listed[0]["by_record"], listed[0]["untrusted"]) == ([*NAMES], False)
    assert f"lock       {TOLD}\n" in recorded.kiln("explain", *CELL, index=None).stdout


def test_what_is_not_wholly_on_record_is_told(recorded: House) -> None:
    """Of 2.5.1 torch's hash alone is known. And who has no index hears of the record where there is one."""
    ran = recorded.kiln("lock", "--torch", "2.5.1", "--cuda", "11.8", "--public-record", index=None)
    assert (ran.returncode, "not all of torch, torchvision and torchaudio cu118" in ran.stderr) == (4, True)
    assert not (recorded.images / "2.5.1-cuda11.8-cudnn9-runtime").exists()
    ran = recorded.kiln("lock", *OTHER, "--images", str(recorded.root / "elsewhere"), index=None)
    assert (ran.returncode, "lock --torch 2.2.2 --cuda 11.8 --public-record" in ran.stderr) == (4, True)


def test_a_sweep_locks_what_is_on_record_and_names_the_rest(house: House) -> None:
    artefact.write_lock(house.root / "swept", load_locked(ROOT / "images", TAG).base)
    words = ("lock", "--torch", "2.2.2,2.5.1", "--cuda", "11.8", "--images", str(house.root / "swept"))
    ran = house.kiln(*words, "--public-record", index=None)
    assert (ran.returncode, ran.stdout) == (0, f"{SMALL}\n"), ran.stderr
    assert "skipped: torch 2.5.1 with CUDA 11.8 (runtime, debian12) is only on PyTorch's own" in ran.stderr
    assert house.kiln(*words, index=None).returncode == 3


def test_a_build_wants_the_index_and_those_very_bytes(recorded: House) -> None:
    """The stand-in's wheels are not the real ones; nothing of them is fetched or kept."""
    ran = recorded.kiln("build", *CELL, index=None)
    assert ran.returncode == 4
    assert ran.stderr.endswith("hint: set TORCHKILN_INDEX_PYTORCH to the index's address\n")

    recorded.server.asked.clear()
    ran = recorded.kiln("build", *CELL)
    sentence = "linux_x86_64.whl: checksum mismatch: sha256"
    assert (ran.returncode, sentence in ran.stderr) == (6, True), ran.stderr
    assert not [path for _, path, _ in recorded.server.asked if path.startswith("/files/")]
    assert not (recorded.root / "dist" / "index.json").exists()


@pytest.fixture(scope="module")
def both(house: House) -> tuple[LockedCell, LockedCell]:
    """2.0.1 by the record of the stand-in's wheels, and measured there; built one after the other."""
    cell = Cell(torch="2.0.1", cuda="11.8", flavor="runtime", os="debian12", python="3.11")
    answer, base = resolve(cell, MATRIX, FACTS), artefact.read_lock(house.images, "debian12")
    assert answer.build
    assert base
    given = on_record(of_stand_in(house), answer.build, "3.11")
    bound = next(index.packages for index in MATRIX.indexes)
    system, versions = System(base=base), Versions(as_of="2026-11-21")
    record = PublicRecord(known=given)
    first = lock(answer, house.index(index=None), system, versions, bound=bound, record=record)
    then = lock(answer, house.index(), system, versions, bound=bound)
    return first, then


def test_its_image_has_the_layers_of_one_whose_wheels_were_measured(
    house: House, both: tuple[LockedCell, LockedCell], tmp_path: Path
) -> None:
    """In a cache of its own each. But for triton's, of which the stand-in's indexes have different bytes."""
    digests: list[dict[str, str]] = []
    for number, locked in enumerate(both):
        assert [one.name for one in locked.wheels if not one.size] == ([] if number else [*NAMES])
        save(house.images, locked)
        mine = with_another_cache(house, tmp_path / f"cache{number}")
        ran = mine.kiln("build", *CELL, "--json", "--output", str(tmp_path / f"dist{number}"), index="")
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout)
        assert len(told["reused"]) == 2, told["reused"]  # the base, and our own files
        digests.append({one["what"]: one["digest"] for one in told["layers"]})
    first, second = digests
    assert first.keys() == second.keys()
    others = [what for what in first if first[what] != second[what]]
    assert others == ["triton 2.0.0", "torchkiln (28 files)"]
