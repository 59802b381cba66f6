"""`lock --public-record`: locks without PyTorch's index, and builds with an index that has the same bytes.

The tests cannot reach the real wheels. They check the hashes of the real record, and build with small wheels
of a local index.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers.two_indexes import IndexWorkspace, furnished, with_another_cache
from torchkiln.base import artefact
from torchkiln.locks.lock import PublicRecord, System, Versions, load_locked, lock, save
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.public_record import on_record
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Source
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # the base, if it is not cached

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
TAG = "2.0.1-cuda11.8-cudnn8-runtime"
SMALL = (
    "2.2.2-cuda11.8-cudnn8-runtime"  # its wheel depends on CUDA's wheels, and does not contain the libraries
)
CELL = ("--torch", "2.0.1", "--cuda", "11.8")
OTHER = ("--torch", "2.2.2", "--cuda", "11.8")
VERSIONS = ("2.0.1+cu118", "0.15.2+cu118", "2.0.2+cu118")
NAMES = ("torch", "torchaudio", "torchvision")
RECORD_NOTE = "torch, torchaudio, torchvision from public record: a build gets them from PyTorch's own index"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexWorkspace]:
    with furnished(tmp_path_factory.mktemp("record"), "2.0.1", "2.2.2") as found:
        yield found


@pytest.fixture(scope="module")
def recorded(workspace: IndexWorkspace) -> IndexWorkspace:
    """Both cells, locked by the real record without a request to PyTorch's index."""
    for cell, tag in ((CELL, TAG), (OTHER, SMALL)):
        ran = workspace.kiln("lock", *cell, "--public-record", index=None)
        assert (ran.returncode, ran.stdout) == (0, f"{tag}\n"), ran.stderr
        assert f"lock: {tag}: {RECORD_NOTE}" in ran.stderr
        assert "and 3 of unknown size" in ran.stderr
    assert not [path for _, path, _ in workspace.server.requests if path.startswith("/whl/")]
    return workspace


def local_facts(workspace: IndexWorkspace) -> Facts:
    """The facts, with the local index's wheels as the record of 2.0.1."""
    release = FACTS.releases["2.0.1"]
    hashes = {
        name: hashlib.sha256(data).hexdigest()
        for (_, name, filename), data in workspace.server.files.items()
        if name in NAMES and "cp311-cp311-linux" in filename and filename.split("-")[1] in VERSIONS
    }
    known = tuple(("cu118", "cp311", name, sha256) for name, sha256 in hashes.items())
    return replace(FACTS, releases={**FACTS.releases, "2.0.1": replace(release, index_sha256=known)})


def test_the_lock_holds_the_recorded_hashes_and_the_default_index_gives_the_rest(
    recorded: IndexWorkspace,
) -> None:
    """triton also comes from the default index, but the default index's torch is not used."""
    for tag, torch, triton in ((TAG, "2.0.1", "2.0.0"), (SMALL, "2.2.2", "2.2.0")):
        found = load_locked(recorded.images, tag)
        wheels = {wheel.name: wheel for wheel in found.wheels}
        known = {
            name: sha
            for variant, python, name, sha in FACTS.releases[torch].index_sha256
            if (variant, python) == ("cu118", "cp311")
        }

        assert found.by_record == NAMES
        assert {name: wheels[name].sha256 for name in NAMES} == known
        assert {wheel.name for wheel in found.wheels if wheel.index is Source.PYTORCH} == set(NAMES)
        assert {wheel.name for wheel in found.wheels if not wheel.size} == set(NAMES)
        assert wheels["torch"].filename == f"torch-{torch}+cu118-cp311-cp311-linux_x86_64.whl"
        assert (wheels["triton"].version, wheels["triton"].index) == (triton, Source.DEFAULT)
        assert wheels["numpy"].version == "1.26.4"
        assert "from-the-wrong-index" not in wheels
        assert not found.untrusted
    pins = dict(FACTS.cu118_pins)
    bundled, small = (load_locked(recorded.images, tag).wheels for tag in (TAG, SMALL))
    assert not [item.name for item in bundled if item.name.startswith("nvidia-")]
    assert pins.items() <= {item.name: item.version for item in small}.items()


def test_a_lock_by_record_is_fresh_and_reproducible(recorded: IndexWorkspace) -> None:
    before = (recorded.images / TAG / "lock.json").read_bytes()
    ran = recorded.kiln("lock", *CELL, "--check", index=None)
    assert (ran.returncode, "1 fresh" in ran.stderr) == (0, True), ran.stderr
    ran = recorded.kiln("lock", *CELL, "--public-record", index=None)
    assert (ran.returncode, "unchanged" in ran.stderr) == (0, True), ran.stderr
    assert (recorded.images / TAG / "lock.json").read_bytes() == before


def test_plan_dockerfile_list_and_explain_show_the_record(recorded: IndexWorkspace) -> None:
    assert "? MB  torch 2.0.1+cu118" in recorded.kiln("plan", *CELL, index=None).stdout
    ran = recorded.kiln("render", *CELL, index=None)
    assert ran.returncode == 0, ran.stderr
    known = load_locked(recorded.images, TAG).wheels
    requirements = (recorded.images / TAG / "requirements.txt").read_text()
    assert all(f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" in requirements for item in known)
    assert f"{TAG}  (locked by public record)" in recorded.kiln("list", *CELL, index=None).stdout
    listed = json.loads(recorded.kiln("list", *CELL, "--json", index=None).stdout)
    assert (listed[0]["by_record"], listed[0]["untrusted"]) == ([*NAMES], False)
    assert f"lock       {RECORD_NOTE}\n" in recorded.kiln("explain", *CELL, index=None).stdout


def test_an_incomplete_record_is_reported(recorded: IndexWorkspace) -> None:
    """The record of 2.5.1 only has torch's hash. Without an index, the error suggests --public-record."""
    ran = recorded.kiln("lock", "--torch", "2.5.1", "--cuda", "11.8", "--public-record", index=None)
    assert (ran.returncode, "not all of torch, torchvision and torchaudio cu118" in ran.stderr) == (4, True)
    assert not (recorded.images / "2.5.1-cuda11.8-cudnn9-runtime").exists()
    ran = recorded.kiln("lock", *OTHER, "--images", str(recorded.root / "elsewhere"), index=None)
    assert (ran.returncode, "lock --torch 2.2.2 --cuda 11.8 --public-record" in ran.stderr) == (4, True)


def test_lock_all_locks_recorded_cells_and_names_the_others(workspace: IndexWorkspace) -> None:
    artefact.write_lock(workspace.root / "swept", load_locked(ROOT / "images", TAG).base)
    words = ("lock", "--torch", "2.2.2,2.5.1", "--cuda", "11.8", "--images", str(workspace.root / "swept"))
    ran = workspace.kiln(*words, "--public-record", index=None)
    assert (ran.returncode, ran.stdout) == (0, f"{SMALL}\n"), ran.stderr
    assert "skipped: torch 2.5.1 with CUDA 11.8 (runtime, debian12) is only on PyTorch's own" in ran.stderr
    assert workspace.kiln(*words, index=None).returncode == 3


def test_a_build_needs_the_index_and_the_same_bytes(recorded: IndexWorkspace) -> None:
    """The local index has other wheels than the real ones. The build downloads and stores none of them."""
    ran = recorded.kiln("build", *CELL, index=None)
    assert ran.returncode == 4
    assert ran.stderr.endswith(
        "hint: set TORCHKILN_INDEX_PYTORCH to https://download.pytorch.org/whl or a mirror of it\n"
    )

    recorded.server.requests.clear()
    ran = recorded.kiln("build", *CELL)
    sentence = "linux_x86_64.whl: checksum mismatch: sha256"
    assert (ran.returncode, sentence in ran.stderr) == (6, True), ran.stderr
    assert not [path for _, path, _ in recorded.server.requests if path.startswith("/files/")]
    assert not (recorded.root / "dist" / "index.json").exists()


@pytest.fixture(scope="module")
def both(workspace: IndexWorkspace) -> tuple[LockedCell, LockedCell]:
    """Two locks of 2.0.1: by a record of the local wheels, and from the local index."""
    cell = Cell(torch="2.0.1", cuda="11.8", flavor="runtime", os="debian12", python="3.11")
    answer, base = resolve(cell, MATRIX, FACTS), artefact.read_lock(workspace.images, "debian12")
    assert answer.build
    assert base
    by_record = on_record(local_facts(workspace), answer.build, "3.11")
    bound = next(index.packages for index in MATRIX.indexes)
    system, versions = System(base=base), Versions(as_of="2026-11-21")
    record = PublicRecord(known=by_record)
    first = lock(answer, workspace.index(index=None), system, versions, bound=bound, record=record)
    then = lock(answer, workspace.index(), system, versions, bound=bound)
    return first, then


@pytest.mark.proof
def test_an_image_by_record_has_the_layers_of_one_from_the_index(
    workspace: IndexWorkspace, both: tuple[LockedCell, LockedCell], tmp_path: Path
) -> None:
    """Only triton's layer differs, because the local indexes have different files. The caches are new."""
    digests: list[dict[str, str]] = []
    for number, locked in enumerate(both):
        assert [wheel.name for wheel in locked.wheels if not wheel.size] == ([] if number else [*NAMES])
        save(workspace.images, locked)
        mine = with_another_cache(workspace, tmp_path / f"cache{number}")
        ran = mine.kiln("build", *CELL, "--json", "--output", str(tmp_path / f"dist{number}"), index="")
        assert ran.returncode == 0, ran.stderr
        result = json.loads(ran.stdout)
        assert len(result["reused"]) == 2, result["reused"]  # the base, and our own files
        digests.append({layer["what"]: layer["digest"] for layer in result["layers"]})
    first, second = digests
    assert first.keys() == second.keys()
    different = [what for what in first if first[what] != second[what]]
    assert different == ["triton 2.0.0", "torchkiln (52 files)"]
