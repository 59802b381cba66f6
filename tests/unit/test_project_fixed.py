"""What an image fixes, and how messages name it: it is not the user who requires it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planned import locked
from torchkiln.model.cell import Constraint
from torchkiln.model.lock import LockedCell
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
    found = {one.name: one.requirement for one in bounds_of(cell("torch>=2", "pillow", "tqdm>4"))}
    assert found["torch"].startswith("torch==2.7.1")
    assert "pillow" not in found
    assert found["tqdm"] == "tqdm>4"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Because you require numpy>=3 and numpy<3, we can conclude",
         "Because you require numpy>=3 and the image fixes numpy to <3, we can conclude"),
        ("because you require mid and numpy<3, we", "because you require mid and the image fixes numpy to <3, we"),
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
