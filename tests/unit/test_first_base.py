"""The first base of a folder of locks: torchkiln's own, the present one, or that of the project."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest

from tests.servers.workspace import Workspace, a_workspace
from torchkiln.base import artefact
from torchkiln.matrix.select import all_cells
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase
from torchkiln.util.places import IMAGES

__all__ = ["a_workspace"]

IMAGE = Digest(f"sha256:{'1' * 64}")


def test_a_project_starts_with_torchkilns_own_base(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools and package hashes of that base are used, too, if it can be had."""
    monkeypatch.setattr(artefact, "ensure", lambda own, *_, **__: (own, ()))
    base = workspace.folder.path / "base-debian12"
    shutil.rmtree(base)
    found = workspace.session().lock(all_cells(workspace.folder.matrix)[-2]).lock

    own = IMAGES / "base-debian12"
    assert found.base == artefact.read_lock(IMAGES, "debian12")
    assert {path.name: path.read_bytes() for path in base.iterdir()} == {
        path.name: path.read_bytes() for path in own.iterdir()
    }


def test_a_project_starts_with_the_present_base_if_the_own_one_is_gone(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is that of a base which can be built; the tools and hashes of the other one are not copied."""
    monkeypatch.setattr(artefact, "ensure", lambda own, *_, **__: (newer(own), ("openssl 1 → 2",)))
    base = workspace.folder.path / "base-debian12"
    shutil.rmtree(base)
    found = workspace.session().lock(all_cells(workspace.folder.matrix)[-2]).lock

    own = artefact.read_lock(IMAGES, "debian12")
    assert own is not None
    assert found.base == artefact.read_lock(workspace.folder.path, "debian12") == newer(own)
    assert [path.name for path in base.iterdir()] == ["base.json"]


def newer(base: LockedBase) -> LockedBase:
    return replace(base, digest=IMAGE)


def test_a_base_of_the_project_stays(workspace: Workspace) -> None:
    path = artefact.lock_path(workspace.folder.path, "debian12")
    fields: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"untrusted": True}))
    found = workspace.session().lock(all_cells(workspace.folder.matrix)[-2]).lock

    assert found.base.untrusted
