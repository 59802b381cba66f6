"""What an image fixes, and how messages name it: it is not the user who requires it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.planned import locked
from tests.unit.test_project_lock import OLD, Workspace, locked_cell, versions
from torchkiln.model.cell import Constraint
from torchkiln.model.lock import LockedCell
from torchkiln.projects.file import FILE
from torchkiln.projects.fixed import Bound, bounds_of, explained

NUMPY = Bound(name="numpy", versions="<3", why="torch was built for NumPy 2")
TORCH = Bound(name="torch", versions="==2.7.1", why="it was tested")


def cell(*requirements: str, constraint: str = "", numpy: str = "2.4") -> LockedCell:
    """A cell with *requirements*, and with *constraint* from a trap."""
    found = locked()
    wheels = tuple(replace(one, version=numpy) if one.name == "numpy" else one for one in found.wheels)
    constraints = (Constraint(requirement=constraint, fact="traps.numpy-2"),) if constraint else ()
    resolution = replace(found.resolution, requirements=requirements, constraints=constraints)
    return replace(found, wheels=wheels, resolution=resolution)


@pytest.mark.parametrize(
    ("of", "bound"),
    [
        (cell(), "the image fixes numpy to <3: torch was built for NumPy 2"),
        (cell("numpy"), "the image fixes numpy to <3: torch was built for NumPy 2"),
        (cell(numpy="1.26.4"), "the image fixes numpy to <3: torch was built for NumPy 2"),
        (cell("numpy<2"), "the image fixes numpy to <2: matrix.yaml requires this"),
        (cell("numpy", constraint="numpy<2"), "the image fixes numpy to <2: of torch 2.2: built for NumPy 1"),
    ],
)
def test_the_bound_of_numpy(of: LockedCell, bound: str) -> None:
    found = {one.name: one for one in bounds_of(of, {"numpy<2": "of torch 2.2: built for NumPy 1"})}
    if "matrix" in bound:
        found = {one.name: one for one in bounds_of(of)}
    assert f"{found['numpy'].text}: {found['numpy'].why}" == bound


def test_torch_and_its_libraries_are_fixed_to_one_version() -> None:
    found = {one.name: f"{one.name}{one.versions}" for one in bounds_of(cell("torch>=2", "pillow", "tqdm>4"))}
    assert found["torch"].startswith("torch==2.7.1")
    assert "pillow" not in found
    assert found["tqdm"] == "tqdm>4"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Because you require numpy>=3 and numpy<3, we can conclude",
         "Because you require numpy>=3 and the image fixes numpy to <3, we can conclude"),
        ("you require mid and numpy<3, we", "you require mid and the image fixes numpy to <3, we"),
        ("you require numpy<3 and mid, we", "the image fixes numpy to <3 and you require mid, we"),
        ("And because you require numpy<3, we", "And because the image fixes numpy to <3, we"),
    ],
)  # fmt: skip
def test_the_resolvers_message(message: str, expected: str) -> None:
    why = "\nthe image fixes numpy to <3, because torch was built for NumPy 2"
    assert explained(message, [TORCH, NUMPY]) == expected + why


@pytest.mark.parametrize(
    "message",
    [
        "Because you require numpy>=3 and numpy<3.1, we",
        "you require numpy<3,>=2 and mid",
        "because all versions of np3 depend on numpy<3, we",
        "you require torch==2.7.10",
    ],
)
def test_other_requirements_stay(message: str) -> None:
    assert explained(message, [TORCH, NUMPY]) == message


@pytest.fixture(scope="module", name="once")
def a_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with locked_cell(Workspace, tmp_path_factory.mktemp("fixed"), ("numpy", "1.26")) as found:
        yield found


@pytest.fixture(name="workspace")
def without_a_lock(once: Workspace) -> Workspace:
    (once.folder / FILE).unlink(missing_ok=True)
    return once


@pytest.mark.parametrize(
    "requirements", ["numpy<2\n", "numpy==1.26\n", "of-numpy-1\n", "attrs\n-c bounds.txt\n"]
)
def test_numpy_moves_to_a_version_that_torch_allows(workspace: Workspace, requirements: str) -> None:
    """torch was built for NumPy 2, and such a torch works with NumPy 1."""
    workspace.server.add("default", "numpy", "1.26", date=OLD)
    workspace.server.add("default", "of-numpy-1", "1.0", requires=("numpy<2",), date=OLD)
    (workspace.folder / "bounds.txt").write_text("numpy<2\n")
    found = workspace.locked(requirements)
    assert (versions(found)["numpy"], found.removed) == ("1.26", ("numpy",))
    assert "numpy" in workspace.messages


def test_numpy_stays_without_a_reason_to_move(workspace: Workspace) -> None:
    workspace.server.add("default", "numpy", "1.26", date=OLD)
    workspace.server.add("default", "numpy", "2.1", date=OLD)
    assert workspace.locked("numpy>=1\n").wheels == ()
    assert versions(workspace.locked("numpy>=2.1\n")) == {"numpy": "2.1"}


@pytest.mark.parametrize("requirements", ["numpy>=3\n", "numpy==3.1\n", "of-numpy-3\n", "deep\n"])
def test_what_the_image_fixes_is_no_requirement_of_the_user(workspace: Workspace, requirements: str) -> None:
    workspace.server.add("default", "numpy", "3.1", date=OLD)
    workspace.server.add("default", "of-numpy-3", "1.0", requires=("numpy>=3",), date=OLD)
    workspace.server.add("default", "deep", "1.0", requires=("of-numpy-3", "attrs"), date=OLD)
    code, messages = workspace.refused(requirements)
    assert code == 4
    assert "the image fixes numpy to <3, because torch was built for NumPy 2" in messages
    assert not re.search(r"you require[^,]* numpy<3", messages)
    assert "choose another --torch" in messages


def test_a_package_that_needs_another_torch(workspace: Workspace) -> None:
    workspace.server.add("default", "future", "1.0", requires=("torch>=2.8",), date=OLD)
    code, messages = workspace.refused("future\n")
    assert code == 4
    assert "the image fixes torch to 2.7.1, because torch and its libraries were tested together" in messages
    assert "you require torch==2.7.1" not in messages
