"""If the cache has the image's wheels, `project lock` gives the same lock without reading their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_project_lock import TAG, Workspace, locked_once, workspace
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import LockedWheel
from torchkiln.projects.file import FILE
from torchkiln.store.store import Store

__all__ = ["locked_once", "workspace"]

IMAGE = ("numpy", "notebook", "orphan", "attrs", "fsspec", "torch", "torchvision", "torchaudio", "triton")


def cache_wheels(workspace: Workspace) -> dict[str, LockedWheel]:
    """Put the image's wheels into the cache, and return them by name."""
    store = Store(Path(str(workspace.environ["TORCHKILN_CACHE"])))
    wheels = {wheel.name: wheel for wheel in load_locked(workspace.images, TAG).wheels}
    for wheel in wheels.values():
        place = store.wheel(wheel)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(workspace.server.files["default", wheel.name, wheel.filename])
    return wheels


def pages_of_image(workspace: Workspace) -> set[str]:
    """The image's packages whose index pages were requested since the last call."""
    found = {path.strip("/").rpartition("/")[2] for _, path, _ in workspace.server.requests}
    workspace.server.requests.clear()
    return found.intersection(IMAGE)


@pytest.mark.parametrize(
    ("requirements", "read"),
    [
        ("trainer<2\nattrs\n", True),  # replaces fsspec; peft is old, because a newer one needs another torch
        ("einops\n", False),
        ("einops[gui]\nnotebook\ntorch\n", False),
        ("notebook>=2\nattrs>1\n", True),
    ],
)
def test_the_lock_is_the_same(workspace: Workspace, requirements: str, read: bool) -> None:
    """The pages of the image's packages are read only if one of these packages must be replaced."""
    for version in ("2.0", "3.0"):
        workspace.add("attrs", version)
    workspace.add("einops", "1.0", "numpy>=2", "window; extra == 'gui'")
    workspace.add("window", "1.0", "attrs<3")
    options = ("--as-of", "2026-11-25")
    workspace.locked(requirements, *options)
    expected = (workspace.folder / FILE).read_bytes()
    assert "torchvision" in pages_of_image(workspace)
    (workspace.folder / FILE).unlink()
    cache_wheels(workspace)
    workspace.locked(requirements, *options)

    assert (workspace.folder / FILE).read_bytes() == expected
    assert ("torchvision" in pages_of_image(workspace)) is read


def test_a_replaced_package_stays_replaced(workspace: Workspace) -> None:
    """The versions in the last lock are preferred to those in the image."""
    first = workspace.locked("datasets\n")
    cache_wheels(workspace)

    assert workspace.locked("datasets\npeft<0.10\n").removed == first.removed == ("fsspec",)


def test_a_damaged_wheel_in_the_cache_is_named(workspace: Workspace) -> None:
    wheel = cache_wheels(workspace)["orphan"]
    Store(Path(str(workspace.environ["TORCHKILN_CACHE"]))).wheel(wheel).write_bytes(b"x" * wheel.size)
    code, messages = workspace.refused("peft\n")

    assert code == 6
    assert f"{wheel.filename}: bad zip file" in messages
