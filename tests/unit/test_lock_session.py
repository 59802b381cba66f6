"""`lock/session.py` as a library calls it: the real resolver against a local index, no command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gridcase import FACTS
from tests.standin.house import MATRIX, House, a_house
from torchkiln.errors import ConfigError, Stale, Unresolvable
from torchkiln.lock.choice import lockable
from torchkiln.lock.folder import LockFolder
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.matrix import read
from torchkiln.model.cell import Cell, Flavor

__all__ = ["a_house"]


def cell(torch: str = "2.7.1", flavor: Flavor = "runtime", *components: str) -> Cell:
    return Cell(torch=torch, cuda="12.1", flavor=flavor, os="debian12", python="3.11", components=components)


def test_a_cell_is_locked_on_its_base_and_checked(house: House) -> None:
    found = house.session("2026-11-01").lock(cell())

    assert (found.previous, found.yanked) == (None, ())
    assert load_locked(house.folder.path, found.tag) == found.lock == house.folder.fresh(cell(), {})
    assert found.lock.base.os == "debian12"
    assert {one.name: one.version for one in found.lock.wheels}["numpy"] == "1.0"
    assert house.folder.check([cell()], sweeping=False).fresh == 1
    assert "not locked yet" in house.folder.check([cell("2.6.0")], sweeping=False).stale[0]


def test_devel_has_the_tools_of_the_base_and_the_archives(house: House) -> None:
    found = house.session("2026-11-01").lock(cell("2.7.1", "devel")).lock

    assert found.tools is not None
    assert found.tools.base == found.base.digest
    assert found.resolution.toolkit is not None
    assert len(found.archives) == len(FACTS.redist.releases[found.resolution.toolkit.release])
    assert house.folder.check([cell("2.7.1", "devel")], sweeping=False).stale == ()


def test_a_component_goes_on_the_plain_lock_whose_day_holds(house: House) -> None:
    plain = house.session("2026-11-01").lock(cell()).lock
    found = house.session().lock(cell("2.7.1", "runtime", "transformers")).lock

    assert set(plain.wheels) < set(found.wheels)
    assert [one.wheels for one in found.components] == [("transformers",)]
    assert found.as_of == plain.as_of == "2026-11-01"


def test_a_second_run_keeps_what_is_not_upgraded(house: House) -> None:
    first = house.session("2026-11-01").lock(cell())
    house.server.yanked["numpy-2.0-py3-none-any.whl"] = ""
    second = house.session("2026-11-22").lock(cell())
    assert second.previous == second.lock == first.lock

    house.server.yanked = {"filelock-1.0-py3-none-any.whl": "data loss"}
    moved = house.session("2026-11-22", ("NumPy",)).lock(cell())
    assert {one.name: one.version for one in moved.lock.wheels}["numpy"] == "2.0"
    assert moved.yanked == (("filelock", "1.0", "data loss"),)
    with pytest.raises(ConfigError, match="nothing-of-the-kind: not in the lock"):
        house.session(None, ("nothing-of-the-kind",)).lock(cell())


def test_a_sweep_goes_on_and_the_observer_hears_of_all(house: House) -> None:
    cells = (cell("2.6.0"), cell())
    with pytest.raises(Unresolvable, match="1 of 2 cells could not be locked"):
        house.session("2026-11-01").run(cells, sweeping=True)
    assert [tag for tag, _ in house.heard.failures] == ["2.6.0-cuda12.1-cudnn9-runtime"]
    assert [one.tag for one in house.heard.results] == ["2.7.1-cuda12.1-cudnn9-runtime"]

    (house.folder.path / "2.7.1-cuda12.1-cudnn9-runtime" / "lock.json").write_text("{}")
    house.session("2026-11-01").run((cell(),), sweeping=False)
    assert "ignoring the versions of the present lock" in house.heard.lines[-1]


def test_another_matrix_makes_a_lock_stale_for_all_who_ask(house: House, tmp_path: Path) -> None:
    house.session("2026-11-01").lock(cell())
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("[numpy, pip]", "[numpy, pip, filelock]"))
    house.folder = LockFolder(house.folder.path, read(tmp_path / "matrix.yaml", FACTS), FACTS)

    (reason,) = house.folder.check([cell()], sweeping=False).stale
    assert reason.endswith("made with other requirements")
    with pytest.raises(Stale, match="was made from another matrix"):
        house.folder.fresh(cell(), {})
    with pytest.raises(Stale, match="on which the components go, was made from another matrix"):
        house.session().lock(cell("2.7.1", "runtime", "transformers"))


def test_only_what_can_be_locked_here_is_chosen(house: House) -> None:
    """torch 2.3.1 for CUDA 11.8 is only on PyTorch's own index, which is not configured."""
    elsewhere = Cell(torch="2.3.1", cuda="11.8", flavor="runtime", os="debian12", python="3.11")
    assert lockable(
        house.folder, (cell(), elsewhere), house.heard.say, environ=house.environ, sweeping=True
    ) == (cell(),)
    assert "is only on PyTorch's own index" in house.heard.lines[-1]
