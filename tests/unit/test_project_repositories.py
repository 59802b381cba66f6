"""A project's lock with packages from git repositories, with a real git server and a fake builder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkouts import git
from tests.servers.git_server import GitServer, needs_git_server
from tests.unit.test_project_lock import OLD, locked_cell, versions
from tests.unit.test_project_sdists import FakeBuilder, Scene
from torchkiln.errors import Stale
from torchkiln.model.project import Origin
from torchkiln.projects.file import FILE, from_json, to_json
from torchkiln.store.store import Store

SETUP = {"setup.py": "x = 1\n"}
BUILD = 'build = ["tool"]\n'


class Forge(Scene):
    forge: GitServer

    def url(self, name: str = "tool") -> str:
        return f"git+{self.forge.url(name)}"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    more = ("backend", "1.0"), ("tool", "0.9"), ("tool", "9.0")
    with locked_cell(Forge, tmp_path_factory.mktemp("repositories"), *more) as found:
        yield found


@pytest.fixture
def scene(cell: Forge, tmp_path: Path) -> Iterator[Forge]:
    needs_git_server()
    cell.folder = tmp_path / "trial"
    cell.folder.mkdir()
    cell.environ["TORCHKILN_CACHE"] = str(tmp_path / "cache")
    cell.builder = FakeBuilder(Store(tmp_path / "cache"))
    cell.settings(BUILD)
    (tmp_path / "server").mkdir()
    with GitServer(tmp_path / "server") as cell.forge:
        yield cell


def origin_of(scene: Forge, requirements: str, *arguments: str) -> Origin:
    (found,) = scene.locked(requirements, *arguments).origins
    return found


def test_a_commit_is_built_and_locked(scene: Forge) -> None:
    """The commit's version is used although the index has others. Its wheel's requirements are locked."""
    commit = scene.forge.commit("tool", SETUP)
    scene.builder.requires["tool"] = ("attrs",)
    line = f"tool @ {scene.url()}@{commit}\n"
    found = scene.locked(line)

    assert versions(found) == {"attrs": "1.0", "tool": "1.5"}
    assert found.requirements == ("tool",)
    (origin,) = found.origins
    assert origin.git is not None
    assert origin.built is not None
    assert (origin.name, origin.git.url, origin.git.commit) == ("tool", scene.forge.url("tool"), commit)
    assert (origin.git.revision, origin.git.subdirectory) == ("", "")
    assert (origin.built.sdist, origin.built.reproducible) == (f"tool-{commit[:12]}.tar", True)
    assert [wheel.name for wheel in origin.built.requires] == ["backend"]
    assert origin.text == f"{scene.url()}@{commit}"
    assert from_json(to_json(found)) == found
    wheel = next(wheel for wheel in found.wheels if wheel.name == "tool")
    assert scene.builder.store.has_wheel(wheel)
    assert f"tool is built from commit {commit} of http://127.0.0.1" in scene.messages

    scene.forge.requests.clear()  # a fresh lock needs no server: the cache has the archive
    assert scene.lock("--check")[0] == 0
    scene.locked(line)
    assert scene.forge.requests == []


def test_a_changed_commit_makes_the_lock_stale(scene: Forge) -> None:
    first = scene.forge.commit("tool", SETUP)
    second = scene.forge.commit("tool", {**SETUP, "more": ""})
    old = origin_of(scene, f"tool @ {scene.url()}@{first}\n")
    for line in (f"tool @ {scene.url()}@{second}", f"tool @ {scene.url()}@{first}#subdirectory=x", "tool"):
        (scene.folder / "requirements.txt").write_text(f"{line}\n")
        code, _, messages = scene.lock("--check")
        assert (code, "made from other requirements" in messages) == (5, True)
    new = origin_of(scene, f"tool @ {scene.url()}@{second}\n")
    assert new.git is not None
    assert new.git.commit == second
    assert new.built != old.built


def test_a_branch_is_locked_by_its_commit(scene: Forge) -> None:
    """It stays locked until an upgrade or another branch. A branch is preferred to a tag of the same name."""
    first = scene.forge.commit("tool", SETUP)
    git(scene.forge.root / "tool.git", "tag", "-a", "-m", "a tag", "v1", first)
    git(scene.forge.root / "tool.git", "tag", "main", first)
    line = f"tool @ {scene.url()}@main\n"

    def commit(requirement: str, *arguments: str) -> tuple[str, str]:
        found = origin_of(scene, requirement, *arguments).git
        assert found is not None
        return found.commit, found.revision

    assert commit(line) == (first, "main")
    second = scene.forge.commit("tool", {**SETUP, "more": ""})
    assert scene.lock("--check")[0] == 0
    assert commit(line) == (first, "main")
    assert commit(line, "--upgrade", "attrs") == (first, "main")
    assert commit(line, "--upgrade", "tool") == (second, "main")
    assert commit(f"tool @ {scene.url()}@v1\n") == (first, "v1")
    assert commit(f"tool @ {scene.url()}\n") == (second, "HEAD")
    assert commit(f"tool @ {scene.url()}@refs/tags/v1\n")[1] == "refs/tags/v1"


@pytest.mark.parametrize("revision", ["nothing", "0123456"])
def test_a_revision_that_does_not_exist(scene: Forge, revision: str) -> None:
    scene.forge.commit("tool", SETUP)
    code, messages = scene.fails(f"tool @ {scene.url()}@{revision}\n")
    assert (code, f"no branch or tag '{revision}'" in messages) == (6, True)
    assert "all of its 40 hex digits" in messages


def test_the_setting_must_name_the_package(scene: Forge) -> None:
    """Otherwise the repository is not fetched."""
    commit = scene.forge.commit("tool", SETUP)
    scene.settings('build = ["other"]\n')
    code, messages = scene.fails(f"\ntool @ {scene.url()}@{commit}\n")
    assert code == 2
    assert (
        "requirements.txt:2: tool: the setting build does not allow building it from source code" in messages
    )
    assert 'build = ["other", "tool"]' in messages
    assert scene.forge.requests == scene.builder.built == []


def test_markers_and_extras(scene: Forge) -> None:
    commit = scene.forge.commit("tool", SETUP)
    scene.builder.requires["tool"] = ("attrs ; extra == 'x'",)
    line = f"tool @ {scene.url()}@{commit}"
    scene.settings("")
    assert versions(scene.locked(f"{line} ; sys_platform == 'win32'\npeft<0.18\n")) == {"peft": "0.9"}
    assert scene.forge.requests == []
    scene.settings(BUILD)
    assert versions(scene.locked(f"tool[x] @ {scene.url()}@{commit}\n")) == {"attrs": "1.0", "tool": "1.5"}


def test_pre_releases_and_local_versions(scene: Forge) -> None:
    """Both are allowed, even if another package requires a range of versions."""
    scene.builder.version = "1.6.dev0+cu121"
    commit = scene.forge.commit("tool", SETUP)
    scene.server.add("default", "user", "1.0", requires=["tool>=1.0"], date=OLD)
    found = scene.locked(f"user\ntool @ {scene.url()}@{commit}\n")
    assert versions(found) == {"tool": "1.6.dev0+cu121", "user": "1.0"}


def test_one_version_only(scene: Forge) -> None:
    """Other versions, from the index, cannot be chosen instead."""
    commit = scene.forge.commit("tool", SETUP)
    code, messages = scene.fails(f"tool>=9\ntool @ {scene.url()}@{commit}\n")
    assert (code, "tool" in messages) == (4, True)
    other = scene.forge.commit("other", SETUP)
    code, messages = scene.fails(f"tool @ {scene.url()}@{commit}\ntool @ {scene.url('other')}@{other}\n")
    assert code == 2
    assert "requirements.txt:2: tool: requirements.txt:1 names another repository or revision" in messages


def test_a_package_of_the_image_is_replaced(scene: Forge) -> None:
    """Even by the same version. A fixed package, such as torch, is not replaced."""
    commit = scene.forge.commit("fsspec", SETUP)
    scene.settings('build = ["fsspec"]\n')
    scene.builder.version = "2026.9"
    found = scene.locked(f"fsspec @ {scene.url('fsspec')}@{commit}\n")
    assert (versions(found), found.removed) == ({"fsspec": "2026.9"}, ("fsspec",))
    (scene.folder / FILE).unlink()
    scene.forge.requests.clear()
    code, messages = scene.fails(f"torch @ {scene.url('torch')}@{commit}\n")
    assert (code, "the image has torch 2.7.1, which a project cannot replace" in messages) == (2, True)
    assert "require torch without a repository" in messages
    assert scene.forge.requests == []


def test_a_uv_lock(scene: Forge) -> None:
    commit = scene.forge.commit("tool", {"pkg/setup.py": ""})
    url = f"{scene.forge.url('tool')}?subdirectory=pkg&rev=v1"
    line = f"tool @ {scene.url()}@v1#subdirectory=pkg"
    (scene.folder / "pyproject.toml").write_text(
        f'[project]\nname = "trial"\nversion = "1"\ndependencies = ["{line}"]\n'
    )
    lock = (
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n\n'
        f'[[package]]\nname = "tool"\nversion = "1.5"\nsource = {{ git = "{url}#{commit}" }}\n\n'
        '[[package]]\nname = "trial"\nversion = "1"\nsource = { virtual = "." }\n'
        'dependencies = [\n    { name = "tool" },\n]\n\n'
        f'[package.metadata]\nrequires-dist = [{{ name = "tool", git = "{url}" }}]\n'
    )
    (scene.folder / "uv.lock").write_text(lock)
    found = origin_of(scene, "unused\n").git
    assert found is not None
    assert (found.commit, found.revision, found.subdirectory) == (commit, "", "pkg")
    (scene.folder / "uv.lock").write_text(lock.replace("rev=v1", "rev=v2"))
    code, _, messages = scene.lock("--check")
    assert (code, "other dependencies than pyproject.toml has: tool" in messages) == (5, True)


def test_a_pylock(scene: Forge) -> None:
    commit = scene.forge.commit("tool", {"pkg/setup.py": ""})
    text = (
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "tool"\nversion = "9.9"\n'
        f'vcs = {{ type = "git", url = "{scene.forge.url("tool")}", requested-revision = "main",'
        f' commit-id = "{commit}", subdirectory = "pkg" }}\n'
    )
    (scene.folder / "pylock.toml").write_text(text)
    found = scene.locked("unused\n")
    assert versions(found) == {"tool": "1.5"}
    assert found.origins[0].git is not None
    assert found.origins[0].git.text == f"{scene.url()}@{commit}#subdirectory=pkg"
    for old, new, why in (
        ('"git"', '"hg"', "only git repositories with a URL are supported"),
        ("url = ", "path = ", "only git repositories with a URL are supported"),
        ("http://", "http://me:secret@", "it contains credentials"),
    ):
        (scene.folder / "pylock.toml").write_text(text.replace(old, new))
        code, messages = scene.fails("unused\n")
        assert re.search(rf"^pylock\.toml:4: tool(:| @ \S+) {why}", messages, re.MULTILINE), messages
        assert code == 2
        assert "secret" not in messages


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "tool @ git+https://h.invalid/tool@v1 --hash=sha256:" + "0" * 64,
            "a repository cannot have a --hash: remove it",
        ),
        ("-c bounds.txt", "a constraint cannot be a repository"),
    ],
)
def test_lines_that_are_refused(scene: Forge, line: str, why: str) -> None:
    (scene.folder / "bounds.txt").write_text("tool @ git+https://h.invalid/tool@v1\n")
    code, messages = scene.fails(f"{line}\n")
    assert (code, why in messages) == (2, True), messages


def test_a_damaged_lock_is_refused(scene: Forge) -> None:
    """For example, someone wrote a URL with credentials into it."""
    commit = scene.forge.commit("tool", SETUP)
    lock = scene.locked(f"tool @ {scene.url()}@{commit}\n")
    (origin,) = lock.origins
    assert origin.git is not None
    for change, why in (
        (replace(origin.git, url="https://me:secret@h.invalid/x"), "is not the URL of a repository"),
        (replace(origin.git, url="ext::sh"), "is not the URL of a repository"),
        (replace(origin.git, commit="main"), "is not a commit of 40 hex digits"),
        (replace(origin.git, revision="-x"), "is not the branch or tag"),
        (replace(origin.git, subdirectory="../x"), "is not inside the repository"),
    ):
        data = to_json(replace(lock, origins=(replace(origin, git=change),)))
        with pytest.raises(Stale, match=why):
            from_json(data)
    with pytest.raises(Stale, match="git only with built"):
        from_json(to_json(replace(lock, origins=(replace(origin, built=None),))))


def test_a_package_that_requires_another_by_url(scene: Forge) -> None:
    """The METADATA of a package may require another package by a repository's URL."""
    commit, other = scene.forge.commit("tool", SETUP), scene.forge.commit("other", SETUP)
    scene.settings('build = ["tool", "other"]\n')
    scene.builder.requires["tool"] = (f"other[x] @ {scene.url('other')}@{other} ; python_version > '3'",)
    scene.builder.requires["other"] = ("attrs ; extra == 'x'",)
    line = f"tool @ {scene.url()}@{commit}\n"
    code, messages = scene.fails(line)
    assert (code, "URL dependencies must be expressed as direct requirements" in messages) == (4, True)
    found = scene.locked(f"{line}other @ {scene.url('other')}@{other}\n")
    assert versions(found) == {"attrs": "1.0", "other": "1.5", "tool": "1.5"}
