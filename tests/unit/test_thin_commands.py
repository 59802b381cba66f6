"""Commands for thin cells: lock, plan, build, render, list, pick and run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.planned import FACTS, MATRIX
from tests.reports import LOCKED
from tests.thin import FULL, thin_cell, thin_locked, thin_resolution
from tests.unpublished import FakeIndex
from torchkiln.api import CellName, Project
from torchkiln.api import lock as lock_by_library
from torchkiln.cli import torchkiln
from torchkiln.docker.dockerfile import demand_full
from torchkiln.engine.build import BuildOptions, build
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import record_layers
from torchkiln.errors import BuildFailed, ConfigError, Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.freshness import outdated
from torchkiln.locks.lock import load_locked, save
from torchkiln.model.progress import Silent
from torchkiln.model.recipe import DEVICE_CODE_RULE
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

THIN = f"{FULL}-sm90"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with the full lock, as it is committed."""
    folder = tmp_path / "images"
    save(folder, LOCKED)
    (folder / "base-debian12").mkdir()
    (folder / "base-debian12/base.json").write_bytes((ROOT / "images/base-debian12/base.json").read_bytes())
    return folder


def run(images: Path, command: str, *more: str) -> Result:
    words = [*command.split(), *more, "--images", str(images), "--matrix", str(ROOT / "matrix.yaml")]
    environ = {"TORCHKILN_CACHE": str(images.parent / "cache"), "TORCHKILN_INDEX_PYTORCH": None}
    return CliRunner(env=environ).invoke(torchkiln, words)


CELL = ("--torch", "2.7", "--cuda", "12.1")


def test_lock_writes_it_beside_the_full_lock(images: Path) -> None:
    assert run(images, "lock", *CELL, "--gpus", "H100").stdout == f"{THIN}\n"
    assert load_locked(images, THIN) == thin_locked()
    assert "1 fresh" in run(images, "lock --check", *CELL, "--gpus", "9.0").stderr
    assert run(images, f"lock --check {THIN}").exit_code == 0


def test_lock_check_of_all_does_not_demand_thin_locks(images: Path) -> None:
    text = (ROOT / "matrix.yaml").read_text()
    matrix = images.parent / "matrix.yaml"
    matrix.write_text(re.sub(r"(?m)^repository:", 'gpus: ["9.0"]\nrepository:', text))
    words = ("lock", "--check", "--all", "--images", str(ROOT / "images"), "--matrix", str(matrix))
    found = CliRunner().invoke(torchkiln, words)
    assert found.exit_code == 0, found.output


def test_another_full_lock_makes_it_stale(images: Path) -> None:
    run(images, "lock", *CELL, "--gpus", "9.0")
    save(images, replace(LOCKED, wheels=LOCKED.wheels[1:]))
    found = run(images, f"lock --check {THIN}")
    assert (type(found.exception), found.exit_code) == (Stale, 1)
    assert f"{FULL} differs in {LOCKED.wheels[0].name}" in str(found.exception)


def test_without_the_full_lock_there_is_no_thin_lock(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for command in ("lock", "plan", "build --dry-run"):
        error = run(tmp_path / "images", command, *CELL, "--gpus", "9.0").exception
        assert isinstance(error, Stale)
        assert f"{FULL}/lock.json: no such file" in error.message
        assert error.hint == "run: torchkiln lock --torch 2.7.1 --cuda 12.1"


@pytest.mark.parametrize("option", ["--upgrade=numpy", "--upgrade-base", "--as-of=2026-11-22"])
def test_it_cannot_be_upgraded_alone(images: Path, option: str) -> None:
    error = run(images, "lock", *CELL, "--gpus", "9.0", option).exception
    assert isinstance(error, ConfigError)
    assert error.message == f"{THIN}: cannot be upgraded alone: its packages come from the lock of {FULL}"


def test_a_plan_makes_a_missing_thin_lock_without_writing_it(images: Path) -> None:
    for command in ("plan", "build --dry-run"):
        found = run(images, command, *CELL, "--gpus", "9.0")
        assert (found.exit_code, found.stdout.splitlines()[0]) == (0, THIN)
    assert not (images / THIN).exists()


def test_a_build_writes_a_missing_thin_lock_once(images: Path) -> None:
    folder = LockFolder(images, MATRIX, FACTS)
    locked = folder.fresh(thin_cell(), {})
    assert locked == thin_locked()
    assert folder.keep(locked)
    assert not folder.keep(locked)
    assert load_locked(images, THIN) == locked
    assert not folder.keep(LOCKED)


def test_a_written_thin_lock_of_another_rule_is_stale(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(images, thin_locked())
    monkeypatch.setattr(import_module("torchkiln.locks.lock"), "DEVICE_CODE_RULE", DEVICE_CODE_RULE + 1)
    with pytest.raises(Stale, match=f"the lock of {THIN} was made from another matrix"):
        LockFolder(images, MATRIX, FACTS).fresh(thin_cell(), {})
    assert outdated(thin_locked(), thin_resolution(), ()) == ""


def test_a_lock_of_another_rule_is_not_built(tmp_path: Path) -> None:
    """`verify --rebuild`, for example, builds other people's locks without comparing them with the matrix."""
    found = thin_locked()
    assert found.device_code is not None
    other = replace(found, device_code=replace(found.device_code, rule=DEVICE_CODE_RULE + 1))
    environment = Environment(store=Store(tmp_path), fetcher=FakeIndex([]), observer=Silent())
    with pytest.raises(BuildFailed, match=f"the lock of {THIN} was made with rule 2 for cutting device code"):
        build(other, MATRIX, FACTS, tmp_path / "dist", environment, options=BuildOptions())


def test_the_library_locks_it(images: Path) -> None:
    project = Project(images=images, matrix=ROOT / "matrix.yaml", cache=images.parent / "cache")
    name = CellName(torch="2.7", cuda="12.1", gpus=("H100",))
    assert lock_by_library(name, project).device_code == thin_locked().device_code
    with pytest.raises(ConfigError, match="own_use requires gpus"):
        lock_by_library(replace(name, gpus=(), own_use=True), project)


def test_layers_of_the_full_lock_do_not_count_as_recorded(images: Path) -> None:
    save(images, thin_locked())
    store = Store(images.parent / "cache")
    assert record_layers(images, THIN, store) == "not built"
    assert record_layers(images, FULL, store) == "already"


def test_no_dockerfile_for_it(images: Path) -> None:
    save(images, thin_locked())
    with pytest.raises(ConfigError, match=f"{THIN}: a Dockerfile cannot build a thin image"):
        demand_full(thin_locked())
    demand_full(LOCKED)
    error = run(images, "render", *CELL, "--gpus", "9.0").exception
    assert isinstance(error, ConfigError)
    matrix = images.parent / "matrix.yaml"
    text = (ROOT / "matrix.yaml").read_text()
    matrix.write_text(re.sub(r"(?m)^repository:", 'gpus: ["9.0"]\nrepository:', text))
    words = ("render", "--images", str(images), "--matrix", str(matrix))
    assert CliRunner().invoke(torchkiln, words).stdout.splitlines() == [FULL]
    assert "sm90" not in (images / "docker-bake.json").read_text()
    assert not (images / THIN / "Dockerfile").exists()


def test_list_and_pick_show_thin_cells_of_the_matrix(images: Path) -> None:
    matrix = images.parent / "matrix.yaml"
    text = (ROOT / "matrix.yaml").read_text()
    matrix.write_text(re.sub(r"(?m)^repository:", 'gpus: ["8.0"]\nrepository:', text))
    options = (*CELL, "--matrix", str(matrix), "--json")
    rows = json.loads(
        CliRunner().invoke(torchkiln, ["list", *options, "--all", "--flavor", "runtime"]).stdout
    )
    assert [(row["tag"], row.get("gpus"), row["archs"]) for row in rows if row["os"] == "debian12"][1] == (
        f"{FULL}-sm80",
        ["8.0"],
        ["sm_80"],
    )
    for gpu, tags in (("L4", [FULL, f"{FULL}-sm80"]), ("H100", [FULL])):
        words = ["pick", *options, "--driver", "570", "--gpu", gpu]
        found = json.loads(CliRunner().invoke(torchkiln, words).stdout)
        assert [row["tag"] for row in found["runs"]] == tags
    assert found["fails"][0]["against"] == ["its device code is for 8.0 only, not for H100 (capability 9.0)"]


def test_run_and_smoke_have_another_gpus_option() -> None:
    """In these two commands, --gpus selects GPUs of the host; elsewhere it selects a thin image."""
    for words, of_thin in (
        ("build", True),
        ("lock", True),
        ("plan show", True),
        ("gate", True),
        ("run", False),
    ):
        text = CliRunner().invoke(torchkiln, [*words.split(), "--help"]).stdout
        assert ("--own-use" in text, "all|none|N|device=" in text) == (of_thin, not of_thin)
    text = CliRunner().invoke(torchkiln, ["smoke", "run", "--help"]).stdout
    assert ("--own-use" in text, text.count("--gpus ")) == (False, 1)
