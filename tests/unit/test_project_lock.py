"""`project lock` with the real resolver, on a locked cell, with a local index."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner

from tests.servers.index_server import Faults, IndexServer
from torchkiln.cli import torchkiln
from torchkiln.errors import KilnError
from torchkiln.locks.lock import load_locked, save
from torchkiln.model.project import ProjectLock
from torchkiln.projects.file import FILE, load_project, save_project
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
OLD, LATER = "2026-06-01T00:00:00Z", "2026-11-21T00:00:00Z"
MATRIX = """\
torch: ["2.6.0", "2.7.1"]
cuda: ["12.1"]
flavors: [runtime]
os:
  debian12: {python: "3.11"}
packages: [numpy, notebook]
repository: pytorch-cuda
"""
PROJECTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("numpy", "2.0"): (),
    ("notebook", "1.0"): ("fsspec", "orphan; python_version < '4'"),
    ("notebook", "2.0"): ("fsspec",),
    ("orphan", "1.0"): ("attrs<3",),
    ("attrs", "1.0"): (),
    ("fsspec", "2026.2"): (),
    ("fsspec", "2026.9"): (),
    ("triton", "3.3.1"): (),
    ("nvidia-cublas-cu12", "12.6"): (),
    ("torch", "2.7.1"): ("fsspec", "triton==3.3.1", "nvidia-cublas-cu12==12.6"),
    ("torchvision", "0.22.1"): ("torch==2.7.1", "numpy"),
    ("torchaudio", "2.7.1"): ("torch==2.7.1",),
    # The old release has no upper bound, like that of the real package.
    ("datasets", "2.14"): ("fsspec>=2021",),
    ("datasets", "4.0"): ("fsspec<=2026.2",),
    ("trainer", "1.0"): ("datasets", "peft"),
    ("peft", "0.9"): ("torch>=2",),
    ("peft", "0.18"): ("torch>=2.8",),
    ("strict", "1.0"): ("notebook>=2", "attrs>=2"),
}


class Workspace:
    """An index, a folder of images with the lock of the parent image's cell, and a project."""

    messages = ""  # stderr of the last call of `locked`

    def __init__(self, server: IndexServer, root: Path) -> None:
        self.server, self.images, self.folder = server, root / "images", root / "trial"
        self.environ: dict[str, str | None] = {
            "UV_DEFAULT_INDEX": server.url("default"),
            "TORCHKILN_CACHE": str(root / "cache"),
            "TORCHKILN_INDEX_PYTORCH": None,
            "PIP_CONFIG_FILE": "/dev/null",
        }
        base = self.images / "base-debian12" / "base.json"
        base.parent.mkdir(parents=True, exist_ok=True)
        base.write_bytes((ROOT / "images" / "base-debian12" / "base.json").read_bytes())
        self.matrix = root / "matrix.yaml"
        self.matrix.write_text(MATRIX)
        self.folder.mkdir()

    def run(self, *arguments: str, cell: bool = True) -> tuple[int, str, str]:
        """Exit code, stdout, and the messages on stderr."""
        named = ("--torch", "2.7", "--cuda", "12.1") if cell else ()
        words = [*arguments, *named, "--matrix", str(self.matrix), "--images", str(self.images)]
        result = CliRunner(env=self.environ).invoke(torchkiln, words, catch_exceptions=True)
        error = result.exception
        if isinstance(error, KilnError):
            return error.exit_code, result.stdout, f"{result.stderr}{error.message}\n{error.hint}"
        assert error is None or isinstance(error, SystemExit), error
        return result.exit_code, result.stdout, result.stderr

    def lock(self, *arguments: str, cell: bool = True) -> tuple[int, str, str]:
        return self.run("project", "lock", str(self.folder), *arguments, cell=cell)

    def locked(self, requirements: str, *arguments: str) -> ProjectLock:
        """The lock of a project with *requirements*."""
        (self.folder / "requirements.txt").write_text(requirements)
        code, out, self.messages = self.lock(*arguments)
        assert (code, out) == (0, "trial\n"), self.messages
        found = load_project(self.folder)
        assert found is not None
        return found

    def refused(self, requirements: str) -> tuple[int, str]:
        (self.folder / "requirements.txt").write_text(requirements)
        code, out, messages = self.lock()
        assert out == ""
        assert not (self.folder / FILE).exists()
        return code, messages

    def add(self, name: str, version: str, *requires: str) -> None:
        self.server.add("default", name, version, requires=requires, date=LATER)


W = TypeVar("W", bound=Workspace)


@contextmanager
def locked_cell(kind: type[W], root: Path, *more: tuple[str, str]) -> Iterator[W]:
    """A workspace in which the cell is locked; the index has PROJECTS, and the packages *more*."""
    with IndexServer() as server:
        for (name, version), requires in (PROJECTS | dict.fromkeys(more, ())).items():
            server.add("default", name, version, requires=requires, date=OLD)
        found = kind(server, root)
        assert found.run("lock", "--as-of", "2026-11-25")[0] == 0
        yield found


@pytest.fixture(scope="module")
def locked_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """An index, and the cell's lock before notebook 2.0 existed: notebook 1.0 requires `orphan`."""
    with IndexServer() as server:
        for (name, version), requires in PROJECTS.items():
            server.add("default", name, version, requires=requires, date=OLD)
        newer = server.files.pop(("default", "notebook", "notebook-2.0-py3-none-any.whl"))
        found = Workspace(server, tmp_path_factory.mktemp("cell"))
        assert found.run("lock", "--as-of", "2026-11-01")[:2] == (0, f"{TAG}\n")
        server.files["default", "notebook", "notebook-2.0-py3-none-any.whl"] = newer
        yield found


@pytest.fixture
def workspace(locked_once: Workspace, tmp_path: Path) -> Iterator[Workspace]:
    """A copy of the folders of `locked_once`; after the test, the index is as before."""
    server = locked_once.server
    files, dates = dict(server.files), dict(server.dates)
    for name in ("images", "cache"):
        shutil.copytree(locked_once.images.parent / name, tmp_path / name, symlinks=True)
    yield Workspace(server, tmp_path)
    server.files, server.dates, server.faults = files, dates, Faults()
    server.requests.clear()


def versions(lock: ProjectLock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


def test_a_package_of_the_image_moves_so_that_a_new_one_is_new(workspace: Workspace) -> None:
    """Without an older fsspec, datasets would be the old release that has no bound. torch stays."""
    workspace.add("attrs", "2.0")
    found = workspace.locked("datasets\n")

    assert versions(found) == {"datasets": "4.0", "fsspec": "2026.2"}
    assert found.removed == ("fsspec",)
    assert (found.name, found.parent, found.requirements) == ("trial", TAG, ("datasets",))
    messages = workspace.messages
    rows = [line.split() for line in messages.splitlines() if line.startswith(("fsspec", "datasets"))]
    assert rows == [
        ["fsspec", "2026.9", "2026.2", "datasets,", "notebook,", "torch"],
        ["datasets", "-", "4.0", "requirements.txt:1"],
    ]
    assert "packages added: 1, replaced: 1 (" in messages


def test_a_dependency_of_a_new_package_is_new_too(workspace: Workspace) -> None:
    """No requirement names datasets, so there would be no warning about an old release."""
    assert versions(workspace.locked("trainer\n"))["datasets"] == "4.0"


def test_packages_that_the_image_has_keep_their_versions(workspace: Workspace) -> None:
    """Newer versions are used only if the project requires or upgrades them."""
    found = workspace.locked("attrs\nnotebook\n")
    assert found.wheels == ()
    workspace.add("attrs", "1.5")
    assert workspace.locked("attrs\nnotebook\n", "--as-of", "2026-11-25").wheels == ()
    assert versions(workspace.locked("attrs>1\n", "--as-of", "2026-11-25")) == {"attrs": "1.5"}


def test_packages_that_nothing_needs_any_more_still_fit(workspace: Workspace) -> None:
    """`orphan` stays in the image and excludes attrs 3.0, so attrs 2.0 is locked: `pip check` passes."""
    workspace.add("attrs", "2.0")
    workspace.add("attrs", "3.0")
    assert versions(workspace.locked("notebook>=2\nattrs>1\n", "--as-of", "2026-11-25")) == {
        "attrs": "2.0",
        "notebook": "2.0",
    }


def test_versions_are_kept_until_they_are_upgraded(workspace: Workspace) -> None:
    first = workspace.locked("datasets\n", "--as-of", "2026-11-01")
    workspace.add("datasets", "4.1", "fsspec<=2026.2")
    assert workspace.locked("datasets\n") == first
    kept = workspace.locked("datasets\npeft\n", "--as-of", "2026-11-25")
    assert versions(kept)["datasets"] == "4.0"
    moved = workspace.locked("datasets\npeft\n", "--as-of", "2026-11-25", "--upgrade", "datasets")
    assert versions(moved)["datasets"] == "4.1"


def test_a_package_far_behind_is_reported_with_the_chain(workspace: Workspace) -> None:
    """peft 0.18 needs a newer torch than the image's, so peft 0.9 is locked."""
    (workspace.folder / "requirements.txt").write_text("peft\n")
    code, _, messages = workspace.lock()
    assert code == 0
    warning = next(line for line in messages.splitlines() if "warning" in line)
    assert "peft 0.9 is far older than its newest release 0.18" in warning
    assert "peft>=0.18 depends on torch>=2.8" in messages
    (workspace.folder / "requirements.txt").write_text("peft<0.10\n")
    assert "warning" not in workspace.lock()[2]


def test_a_named_package_is_raised_if_that_is_possible(workspace: Workspace) -> None:
    """Both packages are named, so the resolver alone would choose fsspec first, and then the old datasets."""
    found = workspace.locked("fsspec>=2026.1\ndatasets>=2\ntorch==2.7.1\n")
    assert versions(found) == {"datasets": "4.0", "fsspec": "2026.2"}


@pytest.mark.parametrize(
    ("requirement", "message", "hint"),
    [
        ("torch==2.6.0", "requirements.txt:1: torch==2.6.0: the image has torch 2.7.1", "use --torch 2.6.0"),
        (
            "torch>=2.8",
            "requirements.txt:1: torch>=2.8: the image has torch 2.7.1",
            "no torch with this CUDA",
        ),
        ("torchvision<0.22", "the image has torchvision 0.22.1", "require torchvision without a version"),
        ("triton==3.2", "the image has triton 3.3.1", "require triton without a version"),
        ("nvidia-cublas-cu12>13", "the image has nvidia-cublas-cu12 12.6", "without a version"),
        (
            "torch ; sys_platform == 'linux'\ntorch<2 ; sys_platform == 'linux'",
            "requirements.txt:2",
            "no torch",
        ),
    ],
)
def test_a_fixed_package_cannot_be_replaced(
    workspace: Workspace, requirement: str, message: str, hint: str
) -> None:
    code, messages = workspace.refused(f"{requirement}\n")
    assert code == 2
    assert message in messages
    assert hint in messages


def test_requirements_that_the_fixed_packages_meet(workspace: Workspace) -> None:
    """Another CUDA variant of torch's release is ignored and listed. Markers of other systems are false."""
    text = "torch==2.7.1+cu118\ntorch>=2 ; sys_platform == 'linux'\ntorch==2.2 ; sys_platform == 'darwin'\n"
    found = workspace.locked(text)
    assert found.wheels == ()
    row = next(line for line in workspace.messages.splitlines() if line.startswith("torch "))
    assert " ".join(row.split()) == "torch 2.7.1 2.7.1 (fixed) requirements.txt:1 has 2.7.1+cu118, ignored"


def test_a_conflict_shows_the_resolvers_chain(workspace: Workspace) -> None:
    workspace.add("attrs", "3.5")
    code, messages = workspace.refused("strict\nattrs>=3\n")
    assert code == 4
    assert f"trial: requirements.txt cannot be installed in {TAG}: the requirements conflict" in messages
    assert "the-image" not in messages
    assert "you require" in messages
    assert "orphan" in messages
    assert "change the requirements in requirements.txt, or choose another --torch" in messages


def test_a_package_without_wheels(workspace: Workspace) -> None:
    workspace.server.files["default", "source", "source-1.0.tar.gz"] = b"x"
    code, messages = workspace.refused("source\n")
    assert code == 4
    assert f"cannot be installed in {TAG}: source: no wheel for this image, only source code:" in messages
    assert "the requirements conflict" not in messages
    assert 'write build = ["source"] into torchkiln.toml beside requirements.txt' in messages
    assert 'or put a wheel into a folder (wheels = "wheels")' in messages


def test_hashes_of_the_project_are_compared(workspace: Workspace) -> None:
    good = workspace.locked("attrs==1.0\ndatasets==4.0\n")
    sha256 = next(wheel.sha256 for wheel in good.wheels if wheel.name == "datasets")
    (workspace.folder / FILE).unlink()
    assert workspace.locked(f"datasets==4.0 --hash=sha256:{sha256}\n").wheels == good.wheels
    (workspace.folder / FILE).unlink()
    for requirement in ("datasets==4.0", "attrs==1.0"):  # attrs is in the image
        code, messages = workspace.refused(f"{requirement} --hash=sha256:{'0' * 64}\n")
        assert code == 6
        assert "checksum mismatch" in messages


def pylock(workspace: Workspace, *packages: tuple[str, str]) -> None:
    text = 'lock-version = "1.0"\ncreated-by = "test"\n'
    for name, version in packages:
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        sha256 = hashlib.sha256(workspace.server.files["default", name, file]).hexdigest()
        wheel = f'{{ url = "https://x.invalid/{file}", hashes = {{ sha256 = "{sha256}" }} }}'
        text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{wheel}]\n'
    (workspace.folder / "pylock.toml").write_text(text)


def test_pins_of_a_lock_file(workspace: Workspace) -> None:
    """Pins of libraries that belong to torch are ignored and listed; torch's pin must match the image."""
    workspace.server.add("default", "nvidia-cublas-cu12", "12.4", date=OLD)
    workspace.server.add("default", "nvidia-cublas-cu11", "11.8", date=OLD)
    workspace.server.add("default", "triton", "3.2", date=OLD)
    pins = (
        ("datasets", "2.14"),
        ("nvidia-cublas-cu12", "12.4"),
        ("nvidia-cublas-cu11", "11.8"),
        ("triton", "3.2"),
    )
    pylock(workspace, *pins, ("torch", "2.7.1"))
    code, out, messages = workspace.lock("--json")
    assert code == 0, messages

    found = json.loads(out)
    assert (found["source"], found["parent"], found["behind"]) == ("pylock.toml", TAG, [])
    assert [
        (move["name"], move["before"], move["after"], move.get("ignored")) for move in found["moves"]
    ] == [
        ("datasets", "", "2.14", None),
        ("nvidia-cublas-cu11", "", "", "11.8"),
        ("nvidia-cublas-cu12", "12.6", "12.6", "12.4"),
        ("triton", "3.3.1", "3.3.1", "3.2"),
    ]
    assert "pylock.toml:12 has 11.8, ignored" in messages

    workspace.server.add("default", "torch", "2.6.0", date=OLD)
    pylock(workspace, ("torch", "2.6.0"))
    code, _, messages = workspace.lock()
    assert (code, "use --torch 2.6.0" in messages) == (2, True)


def test_pythons(workspace: Workspace) -> None:
    text = '[project]\nname = "trial"\nrequires-python = ">=3.12"\ndependencies = []\n'
    (workspace.folder / "pyproject.toml").write_text(text)
    code, _, messages = workspace.lock()
    assert code == 2
    assert f"requires Python >=3.12, but the image {TAG} has 3.11" in messages


def test_the_cell_is_that_of_the_lock(workspace: Workspace) -> None:
    (workspace.folder / "requirements.txt").write_text("attrs\n")
    code, _, messages = workspace.lock(cell=False)
    assert (code, "no image is selected, and the project has no lock" in messages) == (3, True)
    first = workspace.locked("attrs\n")
    assert workspace.lock(cell=False)[:2] == (0, "trial\n")
    assert load_project(workspace.folder) == first
    code, _, messages = workspace.lock("--all", cell=False)
    assert (code, "a project takes the image of one cell, but the options select 2" in messages) == (2, True)
    save_project(workspace.folder, replace(first, parent="2.5.1-cuda12.1-cudnn9-runtime"))
    code, _, messages = workspace.lock(cell=False)
    assert (code, "which the matrix does not have" in messages) == (5, True)


def test_check(workspace: Workspace) -> None:
    """`lock --check` compares the project's files, the parent image's lock and the cell, without an index."""
    (workspace.folder / "requirements.txt").write_text("datasets\n")
    assert workspace.lock("--check")[0] == 5
    found = workspace.locked("datasets\n")
    workspace.server.faults.down = True
    assert workspace.lock("--check", cell=False)[0] == 0

    def reason() -> str:
        code, _, messages = workspace.lock("--check")
        assert code == 5
        assert "project lock" in messages
        return messages

    (workspace.folder / "requirements.txt").write_text("datasets>1\n")
    assert "made from other requirements than requirements.txt has now" in reason()
    (workspace.folder / "requirements.txt").write_text("datasets\n")
    cell = load_locked(workspace.images, TAG)
    save(workspace.images, replace(cell, as_of="2026-11-02"))
    assert f"made for another lock of {TAG}" in reason()
    save(workspace.images, cell)
    save_project(workspace.folder, replace(found, removed=()))
    assert f"its list of removed packages does not match the packages of {TAG}" in reason()
    triton = replace(found.wheels[0], name="triton", filename="triton-1-py3-none-any.whl", version="1")
    save_project(workspace.folder, replace(found, wheels=(*found.wheels, triton)))
    assert "replaces packages that are fixed" in reason()
    save_project(workspace.folder, replace(found, parent="2.6.0-cuda12.1-cudnn9-runtime"))
    assert "made for 2.6.0-cuda12.1-cudnn9-runtime, not for" in reason()
