"""`init --devcontainer`: the image and the properties in the file; existing files are not overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.projects import TAG, bench
from torchkiln.cli import torchkiln
from torchkiln.cli.init import PLACES, DevContainer, devcontainer_json
from torchkiln.errors import ConfigError, KilnError
from torchkiln.projects.file import save_project

FILE = Path(PLACES[0])
MINE = DevContainer(name="my-project", image="pytorch-cuda:my-project", folder="/app")

# The properties of a dev container with an image: types of values, or nested properties. The file was
# validated against their source, schemas/devContainer.base.schema.json of devcontainers/spec at c95ffeed.
PROPERTIES: dict[str, Any] = {
    "name": str,
    "image": str,
    "workspaceMount": str,
    "workspaceFolder": str,
    "remoteUser": str,
    "hostRequirements": {"gpu": (bool, str)},
    "runArgs": [str],
    "mounts": [{"type": str, "source": str, "target": str}],
    "forwardPorts": [int],
    "portsAttributes": {
        "8888": {"label": str, "onAutoForward": str},
        "6006": {"label": str, "onAutoForward": str},
    },
    "otherPortsAttributes": {"onAutoForward": str},
    "postCreateCommand": (str, list, dict),
    "customizations": {"vscode": {"extensions": [str], "settings": {"python.defaultInterpreterPath": str}}},
}
ON_FORWARD = {"notify", "openBrowser", "openBrowserOnce", "openPreview", "silent", "ignore"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one."""
    made = tmp_path / "here"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def init(*arguments: str) -> Result:
    return CliRunner().invoke(torchkiln, ["init", "--devcontainer", *arguments])


def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def faults(value: Any, form: Any, where: str = "") -> list[str]:
    """The paths in *value* whose values do not have the *form* that PROPERTIES gives."""
    if isinstance(form, dict):
        unknown = [f"{where}.{key}: unknown" for key in value if key not in form]
        return unknown + [
            fault for key in form if key in value for fault in faults(value[key], form[key], key)
        ]
    if isinstance(form, list):
        return [fault for item in value for fault in faults(item, form[0], where)]
    return [] if isinstance(value, form) else [f"{where}: {value!r}"]


def test_each_property_is_one_of_the_specification() -> None:
    document = json.loads(devcontainer_json(MINE))

    assert faults(document, PROPERTIES) == []
    assert faults({**document, "forwardPort": []}, PROPERTIES) == [".forwardPort: unknown"]
    assert faults({**document, "runArgs": [1]}, PROPERTIES) == ["runArgs: 1"]
    attributes = (*document["portsAttributes"].values(), document["otherPortsAttributes"])
    assert {each["onAutoForward"] for each in attributes} <= ON_FORWARD
    assert [mount["type"] for mount in document["mounts"]] == ["volume"]
    assert document["hostRequirements"] == {"gpu": "optional"}


def test_the_folder_is_where_the_image_has_the_code() -> None:
    """Python in the container then imports the code that the user edits."""
    document = json.loads(devcontainer_json(MINE))

    assert document["workspaceFolder"] == "/app"
    assert document["workspaceMount"] == "source=${localWorkspaceFolder},target=/app,type=bind"


def test_a_project_gets_its_own_image(folder: Path, tmp_path: Path) -> None:
    small = bench(tmp_path)
    save_project(folder, small.lock())
    done = init()

    assert (done.exit_code, done.stdout) == (0, f"{FILE}\n")
    found = written()
    assert (found["name"], found["image"]) == ("my-project", "pytorch-cuda:my-project")
    assert found["workspaceFolder"] == "/app"
    assert "torchkiln project build .`" in done.stderr
    assert "run my-project --runtime docker" in done.stderr


def test_a_cell_by_options() -> None:
    done = init("--torch", "2.7", "--cuda", "12.1")

    assert done.exit_code == 0, done.stderr
    assert (written()["image"], written()["workspaceFolder"]) == (f"pytorch-cuda:{TAG}", "/workspace")
    assert f"build {TAG} --load`" in done.stderr
    assert not Path("matrix.yaml").exists()


def test_the_only_cell_of_a_matrix() -> None:
    assert CliRunner().invoke(torchkiln, ["init", "--torch", "2.7", "--cuda", "12.1"]).exit_code == 0
    matrix = Path("matrix.yaml").read_text()
    Path("matrix.yaml").write_text(matrix.replace("repository: pytorch-cuda", "repository: ours"))

    assert init().exit_code == 0
    assert written()["image"] == f"ours:{TAG}"


def test_an_image_of_a_registry() -> None:
    name = "registry.example:5000/team/my-project:main@sha256:" + "0" * 64

    assert init("--image", name).exit_code == 0
    assert written()["image"] == name


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", ["file", "link", "folder"])
def test_an_existing_file_is_not_overwritten(folder: Path, place: str, what: str) -> None:
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    {"file": lambda: path.write_text("mine"), "link": lambda: path.symlink_to("x"), "folder": path.mkdir}[
        what
    ]()
    before = sorted(folder.rglob("*"))
    done = init("--image", "a:b")

    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == f"{place}: file exists"
    assert sorted(folder.rglob("*")) == before
    assert what != "file" or path.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--image", "a b"), 2, "--image a b: invalid reference format"),
        (("--image", "-v"), 2, "invalid reference format"),
        (("--image", 'a","runArgs":["--privileged'), 2, "invalid reference format"),
        ((), 3, "nothing selected"),
    ],
)
def test_what_is_refused(folder: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    done = init(*arguments)

    error = done.exception
    said, status = (
        (error.message, error.exit_code) if isinstance(error, KilnError) else (done.stderr, done.exit_code)
    )
    assert status == code
    assert text in said
    assert list(folder.iterdir()) == []
