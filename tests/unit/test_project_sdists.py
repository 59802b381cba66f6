"""Sdists in the lock of a project: which are offered, built and kept, with a fake builder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdists import files_of, sdist
from tests.servers.index_server import metadata_of, wheel_bytes
from tests.stored import put
from tests.unit.test_project_lock import OLD, Workspace, locked_cell, versions
from torchkiln.errors import BuildFailed
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.project import ProjectLock
from torchkiln.projects import locking
from torchkiln.projects.file import FILE, from_json, to_json
from torchkiln.projects.sources import sdists
from torchkiln.projects.sources.sdist import BuildSystem, build_requirements, build_system
from torchkiln.projects.sources.sdists import BuiltSdist, Resolve, SourceCode
from torchkiln.store.store import Store


@dataclass
class FakeBuilder:
    """Makes a wheel that requires the packages in `requires`, and records what it builds."""

    store: Store
    requires: dict[str, tuple[str, ...]] = field(default_factory=dict)
    system: tuple[str, ...] = ("backend",)
    version: str = "1.5"  # the version of a package that is built from a commit
    built: list[str] = field(default_factory=list)
    reproducible: bool = True

    def build(self, code: SourceCode, cell: LockedCell, resolve: Resolve) -> BuiltSdist:
        sdist = code.archive
        assert self.store.has_wheel(sdist)
        self.built.append(f"{sdist.name} {sdist.version}")
        return self._made(sdist, resolve(self.system))

    def again(self, code: SourceCode, cell: LockedCell, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        made = self._made(code.archive, requires)
        return made if self.reproducible else replace(made, wheel=replace(made.wheel, sha256="0" * 64))

    def _made(self, sdist: LockedWheel, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        payload = ",".join(wheel.version for wheel in requires).encode()
        more = self.requires.get(sdist.name, ())
        version = sdist.version or self.version
        filename, data = wheel_bytes(sdist.name, version, requires=more, payload=payload)
        wheel = replace(
            sdist,
            version=version,
            filename=filename,
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            index=Source.PROJECT,
        )
        put(data, self.store.wheel(wheel), self.store)
        return BuiltSdist(wheel=wheel, metadata=metadata_of(data), requires=requires)


class Scene(Workspace):
    """A workspace whose index has sdists."""

    builder: FakeBuilder

    def put(self, name: str, version: str, **details: Any) -> str:
        """Add an sdist to the index, and return its SHA-256."""
        filename, data = sdist(files_of(name, version), name, version)
        self.server.files["default", name, filename] = data
        self.server.dates[filename] = OLD
        return hashlib.sha256(data).hexdigest()

    def settings(self, text: str) -> None:
        (self.folder / "torchkiln.toml").write_text(text)

    def locked(self, requirements: str, *arguments: str) -> ProjectLock:
        self.builder.built.clear()
        with patch.object(locking, "SandboxedBuilder", lambda **_: self.builder):
            return super().locked(requirements, *arguments)

    def fails(self, requirements: str) -> tuple[int, str]:
        (self.folder / "requirements.txt").write_text(requirements)
        with patch.object(locking, "SandboxedBuilder", lambda **_: self.builder):
            code, _, messages = self.lock()
        return code, messages


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with locked_cell(Scene, tmp_path_factory.mktemp("sdists"), ("backend", "1.0")) as found:
        yield found


@pytest.fixture
def scene(cell: Scene, tmp_path: Path) -> Scene:
    cell.folder = tmp_path / "trial"
    cell.folder.mkdir()
    cell.environ["TORCHKILN_CACHE"] = str(tmp_path / "cache")
    cell.builder = FakeBuilder(Store(tmp_path / "cache"))
    return cell


def test_an_sdist_of_a_dependency_is_built(scene: Scene) -> None:
    """The resolver chooses the sdist's version; then the requirements of the built wheel are locked, too."""
    for version in ("4.9.1", "4.9.3", "4.10"):
        scene.put("runtime", version)
    scene.server.add("default", "omega", "1.0", requires=["runtime==4.9.*"], date=OLD)
    scene.builder.requires["runtime"] = ("attrs",)
    scene.settings('build = ["Runtime"]\n')
    found = scene.locked("omega\n")

    assert versions(found) == {"attrs": "1.0", "omega": "1.0", "runtime": "4.9.3"}
    assert scene.builder.built == ["runtime 4.9.3"]
    (origin,) = found.origins
    assert origin.built is not None
    assert (origin.name, origin.built.sdist, origin.built.reproducible) == (
        "runtime",
        "runtime-4.9.3.tar.gz",
        True,
    )
    assert [(wheel.name, wheel.version) for wheel in origin.built.requires] == [("backend", "1.0")]
    wheel = next(wheel for wheel in found.wheels if wheel.name == "runtime")
    assert wheel.sha256 != origin.built.sha256
    assert scene.builder.store.has_wheel(wheel)
    assert from_json(to_json(found)) == found
    assert scene.lock("--check")[0] == 0
    scene.settings('build = ["Runtime", "more"]\n')
    assert scene.lock("--check")[0] == 5


def test_only_what_is_named_is_built(scene: Scene) -> None:
    scene.put("unnamed", "1.0")
    code, messages = scene.fails("unnamed\n")
    assert code == 4
    assert 'to have it built in a sandbox, write build = ["unnamed"] into torchkiln.toml' in messages
    assert scene.builder.built == []
    scene.settings('build = ["other"]\n')
    code, messages = scene.fails("unnamed\n")
    assert (code, 'write build = ["other", "unnamed"] into' in messages) == (4, True)
    assert scene.builder.built == []


def test_a_version_with_a_wheel_is_not_built(scene: Scene) -> None:
    """The wheel may be in the project's folder. A wheel for another Python does not count."""
    scene.put("both", "2.0")
    scene.server.add("default", "both", "2.0", date=OLD)
    scene.put("both", "1.0")
    scene.server.add("default", "both", "1.0", tag="cp39-cp39-win_amd64", date=OLD)
    scene.settings('build = ["both"]\nwheels = "wheels"\n')
    (scene.folder / "wheels").mkdir()
    assert scene.locked("both\n").origins == ()
    assert scene.builder.built == []
    (scene.folder / FILE).unlink()
    assert versions(scene.locked("both<2\n")) == {"both": "1.0"}
    assert scene.builder.built == ["both 1.0"]
    (scene.folder / FILE).unlink()
    filename, data = wheel_bytes("both", "1.0", payload=b"own")
    (scene.folder / "wheels" / filename).write_bytes(data)
    assert [origin.path for origin in scene.locked("both<2\n").origins] == [f"wheels/{filename}"]
    assert scene.builder.built == []


def test_a_build_is_kept_with_its_requirements(scene: Scene) -> None:
    """A newer build backend has no effect until the package is upgraded."""
    scene.put("kept", "1.0")
    scene.settings('build = ["kept"]\n')
    first = scene.locked("kept\n", "--as-of", "2026-11-24")
    scene.server.add("default", "backend", "1.1", date=OLD)
    second = scene.locked("kept\nattrs\n", "--as-of", "2026-11-25")
    assert second.origins == first.origins
    third = scene.locked("kept\nattrs\n", "--upgrade", "kept")
    assert third.origins != first.origins
    assert third.origins[0].built is not None
    assert third.origins[0].built.requires[0].version == "1.1"


def test_hashes_are_those_of_the_sdist(scene: Scene) -> None:
    """Like pip, `lock` compares --hash with the sdist, not with the wheel that is built from it."""
    sha256 = scene.put("hashed", "1.0")
    scene.settings('build = ["hashed"]\n')
    scene.locked(f"hashed==1.0 --hash=sha256:{sha256}\n")
    code, messages = scene.fails(f"hashed==1.0 --hash=sha256:{'0' * 64}\n")
    assert (code, "checksum mismatch" in messages) == (6, True)


def test_a_uv_lock_with_an_sdist(scene: Scene) -> None:
    """The hash in uv.lock is compared with the sdist."""
    sha256 = scene.put("pinned", "1.0")
    scene.settings('build = ["pinned"]\n')
    (scene.folder / "pyproject.toml").write_text(
        '[project]\nname = "trial"\nversion = "1"\ndependencies = ["pinned"]\n'
    )
    (scene.folder / "uv.lock").write_text(
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n\n'
        '[[package]]\nname = "pinned"\nversion = "1.0"\nsource = { registry = "https://x.invalid/simple" }\n'
        f'sdist = {{ url = "https://x.invalid/pinned-1.0.tar.gz", hash = "sha256:{sha256}" }}\n\n'
        '[[package]]\nname = "trial"\nversion = "1"\nsource = { virtual = "." }\n'
        'dependencies = [\n    { name = "pinned" },\n]\n\n'
        '[package.metadata]\nrequires-dist = [{ name = "pinned" }]\n'
    )
    found = scene.locked("unused\n")
    assert (versions(found), scene.builder.built) == ({"pinned": "1.0"}, ["pinned 1.0"])


def test_a_failed_build_is_the_error(scene: Scene) -> None:
    scene.put("broken", "1.0")
    scene.settings('build = ["broken"]\n')
    with patch.object(FakeBuilder, "build", side_effect=BuildFailed("broken-1.0.tar.gz: its build failed")):
        code, messages = scene.fails("broken\n")
    assert (code, "broken-1.0.tar.gz: its build failed" in messages) == (6, True)


def test_packages_that_a_build_must_not_require(scene: Scene) -> None:
    scene.put("ext", "1.0")
    scene.settings('build = ["ext"]\n')
    refusals = {
        "torch": "its build requires torch",
        "peft": "its build requires",
        "nowhere": "cannot be installed",
    }
    for required, words in refusals.items():
        scene.builder.system = (required,)
        code, messages = scene.fails("ext\n")
        assert (code, words in messages) == (6, True), messages
    scene.settings('build = ["torch", "triton"]\n')
    code, messages = scene.fails("ext\n")
    assert (code, "build: torch, triton: fixed in the image" in messages) == (2, True)


def test_builds_are_limited(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdists, "MOST", 1)
    scene.put("one", "1.0")
    scene.put("two", "1.0")
    scene.settings('build = ["one", "two"]\n')
    code, messages = scene.fails("one\ntwo\n")
    assert (code, "more than 1 builds" in messages) == (6, True)


def test_a_wheel_that_is_not_reproducible_is_reported(scene: Scene) -> None:
    scene.put("random", "1.0")
    scene.settings('build = ["random"]\n')
    scene.builder.reproducible = False
    code, messages = scene.fails("random\n")
    assert code == 0
    assert "random is built from random-1.0.tar.gz; warning: not reproducible" in messages
    text = json.loads((scene.folder / FILE).read_text())
    assert "reproducible" not in text["origins"][0]["built"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", BuildSystem()),
        ('[project]\nname = "x"\n', BuildSystem()),
        ('[build-system]\nrequires = ["hatchling >=1"]\nbuild-backend = "hatchling.build"\n',
         BuildSystem(requires=("hatchling>=1",), backend="hatchling.build")),
        ('[build-system]\nrequires = []\nbuild-backend = "b:x.y"\nbackend-path = [".", "a/b"]\n',
         BuildSystem(requires=(), backend="b:x.y", path=(".", "a/b"))),
    ],
)  # fmt: skip
def test_build_systems(text: str, found: BuildSystem) -> None:
    assert build_system(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("build-system = 3", "is not a table"),
        ("[build-system]\nrequires = [3]", "requires is not a list of strings"),
        ('[build-system]\nrequires = ["a=1"]', "its build requires 'a=1', which is not a valid requirement"),
        ('[build-system]\nbuild-backend = "a b"', "is not the name of a module"),
        ('[build-system]\nbackend-path = [".."]', "is not a relative path inside the sdist"),
        ('[build-system]\nbackend-path = ["/etc"]', "is not a relative path inside the sdist"),
    ],
)
def test_invalid_build_systems(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build_system(text.encode())


@given(st.one_of(st.lists(st.one_of(st.text(), st.none(), st.integers())), st.integers(), st.none()))
def test_any_answer_of_a_backend_is_read_or_refused(texts: object) -> None:
    try:
        found = build_requirements(texts)
    except ValueError:
        return
    assert isinstance(texts, list)
    assert len(found) <= len(texts)


@pytest.mark.parametrize(
    "requirement", ["runtime==4.9.3", "runtime<4.10", "runtime>=4.9,<4.10", "runtime!=4.9.2,<4.10", "omega"]
)
def test_a_package_whose_matching_releases_have_no_wheels_is_the_cause(
    scene: Scene, requirement: str
) -> None:
    """Other releases have wheels, so the resolver names ranges of versions, or lists of ranges."""
    for version in ("4.9.1", "4.9.2", "4.9.3"):
        scene.put("runtime", version)
    scene.server.add("default", "runtime", "4.13", date=OLD)
    scene.server.add("default", "omega", "1.0", requires=["runtime==4.9.*"], date=OLD)
    code, messages = scene.fails(f"{requirement}\n")

    assert code == 4
    assert "runtime: no wheel for this image, only source code:" in messages
    assert 'write build = ["runtime"] into torchkiln.toml beside requirements.txt' in messages


def test_a_release_that_is_newer_than_all_wheels_is_named(scene: Scene) -> None:
    scene.server.add("default", "speed", "0.3", date=OLD)
    scene.put("speed", "0.19")
    scene.locked("speed\n")
    warning = "speed 0.3 is far older than its newest release 0.19: that has no wheel for this image, only"
    assert warning in scene.messages
    assert 'write build = ["speed"] into torchkiln.toml' in scene.messages

    for text in ("speed==0.3\n", "speed<0.5\n"):
        scene.locked(text)
        assert "far older" not in scene.messages
    scene.settings('build = ["speed"]\n')
    assert versions(scene.locked("speed\n", "--upgrade")) == {"speed": "0.19"}
    assert "far older" not in scene.messages


def test_an_sdist_that_cannot_be_built_is_not_to_be_named_again(scene: Scene) -> None:
    """word2number has only a .zip; naming it in `build` changes nothing."""
    scene.server.files["default", "zipped", "zipped-1.0.zip"] = b"x"
    scene.server.dates["zipped-1.0.zip"] = OLD
    assert 'build = ["zipped"]' in scene.fails("zipped\n")[1]
    scene.settings('build = ["zipped"]\n')
    code, messages = scene.fails("zipped\n")

    assert code == 4
    assert "zipped: named in build, but only a .tar.gz can be built: in the project's folder, run" in messages
    assert 'write wheels = "wheels" into torchkiln.toml' in messages
    assert "build = [" not in messages
