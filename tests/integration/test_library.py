"""Execute docs/project-folder.md by blocks, with a local index, generated wheels and a real registry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import torchkiln
from tests import cells
from tests.company import small_scale
from tests.engine.registry import RunningRegistry
from tests.publisher import Publisher, a_publisher, a_repository
from tests.reports import TAG
from tests.servers.workspace import Workspace, a_workspace
from tests.unpublished import FakeIndex
from torchkiln import CellName, Project, explain, publish, verify
from torchkiln.engine import environment
from torchkiln.errors import ConfigError, GateRefused
from torchkiln.locks.folder import LockFolder
from torchkiln.util.places import ROOT

__all__ = ["a_publisher", "a_repository", "a_workspace"]

PAGE = (ROOT / "docs" / "project-folder.md").read_text()
# The third block is tested in test_project_image.py.
LOCK, BUILD, _, PUBLISH = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(block: str, names: dict[str, Any]) -> None:
    """Execute *block* of the page; *names* has the variables before and after."""
    exec(compile(block, "docs/project-folder.md", "exec"), names)


def test_explain_and_lock(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace.folder.path.parent)
    for name, value in {**workspace.environ, "TORCHKILN_CACHE": str(workspace.store.root)}.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    run(LOCK, names)
    assert names["resolution"].build.version == "2.7.1+cu126"
    assert {wheel.name for wheel in names["locked"].wheels} >= {"torch", "numpy"}
    assert capsys.readouterr().out.startswith("2.7.1+cu126 needs driver 525.60.13\n")
    written = names["project"].images / "2.7.1-cuda12.1-cudnn9-runtime"
    assert {path.name for path in written.iterdir()} >= {"lock.json", "requirements.txt"}


@pytest.fixture(name="scene")
def a_scene(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Make the folder of *publisher*, with the committed matrix, the current folder."""
    monkeypatch.chdir(publisher.folder)
    (publisher.folder / "matrix.yaml").write_bytes((ROOT / "matrix.yaml").read_bytes())
    for name, value in publisher.environ.items():
        monkeypatch.setenv(name, value)
    return publisher


def project(publisher: Publisher) -> Project:
    return Project(
        matrix=publisher.folder / "matrix.yaml",
        images=publisher.folder / "images",
        layout=publisher.layout,
        suite=publisher.suite,
    )


def test_build(scene: Publisher) -> None:
    """The wheels are generated, and the host's Python compiles them. All else is as in a real build."""
    wheels = cells.small_wheels(scene.folder / "wheels", "", str(scene.folder))
    cell = CellName(torch="2.7", cuda="12.1")
    names: dict[str, Any] = {"torchkiln": torchkiln, "cell": cell, "project": project(scene)}
    locked = cells.planned_cell(wheels).locked
    cells.put_base(locked.base, scene.store)
    with (
        small_scale(wheels),
        patch.object(LockFolder, "fresh", lambda *_: locked),
        patch.object(environment, "LazyIndex", lambda _store: FakeIndex(wheels)),
    ):
        run(BUILD, names)
    [entry] = json.loads((scene.layout / "index.json").read_text())["manifests"]
    assert entry["digest"] == names["image"].manifest


@pytest.fixture(name="published")
def a_publication(scene: Publisher, registry: RunningRegistry, name: str) -> dict[str, Any]:
    image = scene.build()
    scene.signed(scene.report(image))
    names: dict[str, Any] = {"torchkiln": torchkiln, "Path": Path, "project": project(scene)}
    names["image"] = SimpleNamespace(tag=TAG, manifest=image.manifest)  # as an earlier block sets it
    run(PUBLISH.replace("localhost:5000/team/pytorch", f"{registry.host}/{name}"), names)
    return names


def test_publish_and_verify(published: dict[str, Any], registry: RunningRegistry, name: str) -> None:
    assert set(registry.tags(name)) >= {TAG, "2.7-cuda12.1-runtime"}
    assert published["result"].verified
    assert published["result"].digest == published["image"].manifest


def test_verify_finds_a_key_that_is_not_trusted(
    published: dict[str, Any], registry: RunningRegistry, name: str, scene: Publisher
) -> None:
    result = verify(f"{registry.host}/{name}:{TAG}", project(scene))
    assert not result.verified


def test_publish_raises_what_the_gate_refuses(scene: Publisher, registry: RunningRegistry, name: str) -> None:
    scene.build()
    with pytest.raises(GateRefused):
        publish(TAG, f"{registry.host}/{name}", project(scene))
    assert registry.tags(name) == []


def test_a_cell_that_the_matrix_does_not_have(scene: Publisher) -> None:
    with pytest.raises(ConfigError, match=r"9\.9"):
        explain(CellName(torch="9.9", cuda="12.1"), project(scene))
