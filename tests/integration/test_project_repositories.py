"""A package from a Git repository: fetched, built in the sandbox, and built again on another machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.integration.test_project_wheels import SITE, Builder, bench, root_of
from tests.integration.test_sdist_sandbox import Scene
from tests.needs import needs_namespaces
from tests.sdists import files_of, run_on_host
from tests.servers.git_server import GitServer, needs_git_server
from tests.wheels import make_wheel
from torchkiln.errors import BuildFailed
from torchkiln.index.settings import index_settings
from torchkiln.model.cell import Source
from torchkiln.model.project import BuiltFrom, GitCommit, Origin
from torchkiln.projects import build as building_project
from torchkiln.projects.sources import sdist as building
from torchkiln.projects.sources.repositories import Repositories
from torchkiln.projects.sources.sdists import SourceCode
from torchkiln.store.store import Store

pytestmark = needs_namespaces


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[GitServer]:
    needs_git_server()
    (tmp_path / "server").mkdir()
    with GitServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(building, "run_enclosed", run_on_host)
    return Scene(tmp_path)


def fetched(store: Store, code: GitCommit, name: str = "tool") -> SourceCode:
    settings = index_settings({}, pip_config="")
    found = Repositories(store=store, settings=settings, environ=os.environ, say=lambda _: None)
    return found.archive(name, code)


def test_the_wheel_of_a_commit(scene: Scene, forge: GitServer) -> None:
    """The built wheel gives the version. The build gets all files of the repository, without history."""
    extra = (
        "\ndef extra():\n    assert not os.path.exists('../.git')\n    return open('../shared.txt').read()\n"
    )
    files = {f"pkg/{name}": text for name, text in files_of(version="2.5", code=extra).items()}
    commit = forge.commit("tool", {**files, "shared.txt": "# shared\n"})
    code = fetched(scene.store, GitCommit(url=forge.url("tool"), commit=commit, subdirectory="pkg"))
    made = scene.builder.build(code, scene.cell, scene.resolve)

    assert (made.wheel.name, made.wheel.version, made.wheel.index) == ("tool", "2.5", Source.PROJECT)
    assert b"# shared" in scene.store.wheel(made.wheel).read_bytes()
    assert scene.builder.again(code, scene.cell, made.requires).wheel == made.wheel


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (files_of(name="other"), "tool-{commit}.tar: its build made an invalid wheel: its name is other"),
        (files_of(code="\ndef build_wheel(*_):\n    return 'x'\n"), "tool-{commit}.tar: its build "),
        (
            files_of(code="\nraise LookupError('setuptools-scm was unable to detect version for /x')\n"),
            "its version comes from git's history",
        ),
        ({"pyproject.toml": "", "x": ""}, "tool-{commit}.tar: its build failed"),
    ],
)
def test_builds_that_are_refused(scene: Scene, forge: GitServer, files: dict[str, str], why: str) -> None:
    commit = forge.commit("tool", files)
    scene.wheels = {}
    code = fetched(scene.store, GitCommit(url=forge.url("tool"), commit=commit))
    with pytest.raises(BuildFailed) as caught:
        scene.builder.build(code, scene.cell, lambda _: ())
    assert why.format(commit=commit[:12]) in f"{caught.value.message}\n{caught.value.hint}"


@pytest.mark.proof
def test_a_wheel_is_built_again_on_another_machine(
    tmp_path: Path, forge: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is fetched once. Other bytes for the commit, or a deleted commit, are an error."""
    monkeypatch.setattr(building_project, "is_unread", lambda wheel, store: not store.has_wheel(wheel))
    small = bench(tmp_path)
    commit = GitCommit(url=forge.url("own"), commit=forge.commit("own", {"setup.py": "", "a": "1"}))
    archive = fetched(Store(tmp_path / "other"), commit, "own").archive
    lock = small.lock(make_wheel(small.folder / "made", "own", "1", {"own/__init__.py": b"VALUE = 5\n"}))
    built = BuiltFrom(sdist=archive.filename, sha256=archive.sha256, size=archive.size)

    def of(commit: GitCommit, built: BuiltFrom) -> None:
        origin = Origin(name="own", git=commit, built=built)
        wheels = (replace(lock.wheels[0], index=Source.PROJECT),)
        small.build(replace(lock, wheels=wheels, origins=(origin,)))

    builder = Builder(small, b"VALUE = 5\n")
    with patch("torchkiln.projects.sources.repositories.SandboxedBuilder", lambda **_: builder):
        with pytest.raises(BuildFailed, match="not our ref"):
            of(replace(commit, commit="1" * 40), built)
        with pytest.raises(BuildFailed, match="must begin with https://"):
            of(replace(commit, url="http://host.invalid/own"), built)
        with pytest.raises(BuildFailed, match="checksum mismatch: the commit gives sha256"):
            of(commit, replace(built, sha256="0" * 64))
        assert builder.asked == []
        of(commit, built)
        assert builder.asked == [(archive.filename, ())]
        assert (root_of(small) / SITE / "own/__init__.py").read_text() == "VALUE = 5\n"
        of(commit, built)
    assert len(builder.asked) == 1
