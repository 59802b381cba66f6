"""The first base of a folder of locks: torchkiln's own, the present one, or that of the project."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from tests.servers.workspace import Workspace, a_workspace
from tests.stored import committed_base
from torchkiln.base import artefact
from torchkiln.matrix.select import all_cells
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase
from torchkiln.util.places import IMAGES

__all__ = ["a_workspace"]

OWN = committed_base()
assert OWN
NEWER = replace(OWN, digest=Digest(f"sha256:{'1' * 64}"))


@pytest.mark.parametrize("present", [(OWN, ()), (NEWER, ("openssl 1 → 2",))], ids=["own", "newer"])
def test_a_project_starts_with_torchkilns_own_base_or_else_the_present_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, present: tuple[LockedBase, tuple[str, ...]]
) -> None:
    """Tools and package hashes of the own base are used, too, if it can be had; else they are not copied."""
    monkeypatch.setattr(artefact, "ensure", lambda *_, **__: present)
    base = workspace.folder.path / "base-debian12"
    shutil.rmtree(base)

    assert locked_base(workspace) == artefact.read_lock(workspace.folder.path, "debian12") == present[0]
    if present[0] == OWN:
        own = {path.name: path.read_bytes() for path in (IMAGES / "base-debian12").iterdir()}
        assert {path.name: path.read_bytes() for path in base.iterdir()} == own
    else:
        assert [path.name for path in base.iterdir()] == ["base.json"]


def test_a_base_of_the_project_stays(workspace: Workspace) -> None:
    path = artefact.lock_path(workspace.folder.path, "debian12")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"untrusted": True}))

    assert locked_base(workspace).untrusted


def locked_base(workspace: Workspace) -> LockedBase:
    return workspace.session().lock(all_cells(workspace.folder.matrix)[-2]).lock.base
