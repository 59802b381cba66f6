"""examples/: each is built, by the commands of its README, with small wheels and a small image."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.docker.scene import cached_base, present_base
from tests.programs import run_program
from tests.servers.index_server import IndexServer
from tests.unit.test_workflow_files import schema, zizmor
from tests.workflow_scene import IMAGE, gate, scene
from tests.workflows import GITHUB, loaded
from tests.workplace import Workplace
from torchkiln.base import artefact
from torchkiln.util.places import ROOT

EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
TAG = "2.7.1-cuda12.1-cudnn9-runtime"
DATE = "2026-06-01T00:00:00Z"


def commands(example: str) -> list[list[str]]:
    """The commands in the README of *example*, with their variables."""
    variables: dict[str, str] = {}
    found = []
    for line in re.findall(r"^    (.+)$", (EXAMPLES / example / "README.md").read_text(), re.MULTILINE):
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line)
        if words[0] == "export":
            variables |= [words[1].split("=", 1)]  # type: ignore[arg-type]
        else:
            found.append(words)
    return found


@pytest.mark.parametrize("example", FOLDERS)
def test_a_readme_has_at_most_20_lines(example: str) -> None:
    assert len((EXAMPLES / example / "README.md").read_text().splitlines()) <= 20


def test_there_are_six() -> None:
    """Other files test recipes and projects. The test of examples/work needs the real index (ADR 45)."""
    assert FOLDERS == ["dockerfile", "gate", "matrix", "projects", "recipes", "work"]


# --- matrix ----------------------------------------------------------------------------------------


@pytest.fixture
def index() -> Iterator[IndexServer]:
    """An index with small wheels, named like the packages in the example's matrix and torch's companions."""
    with IndexServer() as server:
        wheels: Mapping[str, tuple[str, Sequence[str]]] = {
            "torch": ("2.7.1", ()),
            "torchvision": ("0.22.1", ["torch==2.7.1", "numpy"]),
            "torchaudio": ("2.7.1", ["torch==2.7.1"]),
            "numpy": ("2.4.6", ()),
            "pip": ("25.0", ()),
            "tqdm": ("4.70", ()),
            "timm": ("1.0", ["torch", "torchvision", "huggingface-hub"]),
            "huggingface-hub": ("1.0", ["tqdm"]),
            "einops": ("0.8", ()),
        }
        for name, (version, requires) in wheels.items():
            server.add("default", name, version, requires=requires, date=DATE)
        yield server


@pytest.mark.network  # the base, if it is not cached
@pytest.mark.proof  # a minute
def test_the_matrix_is_locked_and_built(index: IndexServer, tmp_path: Path) -> None:
    """The README's commands lock and build it; the last command runs in the image."""
    shutil.copytree(EXAMPLES / "matrix", tmp_path / "examples/matrix")
    images = tmp_path / "examples/matrix/images"
    base = present_base()
    artefact.write_lock(images, base)
    environ = {
        **os.environ,
        "TORCHKILN_CACHE": str(cached_base(base, tmp_path / "cache").root),
        "UV_DEFAULT_INDEX": index.url("default"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "PIP_INDEX_URL": index.url("default"),
        "PIP_CONFIG_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }
    program = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py")]
    outputs = []
    for words in commands("matrix"):
        assert words[:2] == ["python", "build.py"]
        done = run_program([*program, *words[2:]], cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    lock = json.loads((images / TAG / "lock.json").read_text())

    assert outputs[0] == f"{TAG}\n"
    assert {"einops", "huggingface-hub", "timm"} <= {wheel["name"] for wheel in lock["wheels"]}
    assert outputs[1].startswith("sha256:")


# --- Dockerfile ------------------------------------------------------------------------------------


@pytest.mark.network  # the small image's wheels, and if it is not cached, the base
def test_the_dockerfile_builds_on_an_image(workplace: Workplace) -> None:
    """pip finds its requirements in the image; the image's entrypoint and environment remain."""
    name = "torchkiln-example:train"
    build = next(words for words in commands("dockerfile") if words[:2] == ["docker", "build"])
    assert build[-1] == "examples/dockerfile"
    argv = ["docker", "build", "--tag", name, "--build-arg", f"IMAGE={workplace.image}", build[-1]]
    built = run_program(argv, cwd=ROOT, env=dict(workplace.environ))
    assert built.returncode == 0, built.stderr
    derived = Workplace(environ=workplace.environ, image=name)
    try:
        helped = derived.run("--user", "4711", command=["python", "train.py", "--help"])
        user = derived.run("--user", "4711", command=["whoami"])
        without_torch = derived.run()
    finally:
        subprocess.run(["docker", "rmi", "--force", name], env=dict(workplace.environ), capture_output=True)

    assert (helped.returncode, user.stdout) == (0, "user\n")
    assert "Fit a line with torch" in helped.stdout
    assert "No module named 'torch'" in without_torch.stderr  # so the script has started


# --- gate ------------------------------------------------------------------------------------------


def filled(text: str, commit: str) -> str:
    """The example with its placeholders replaced."""
    return (
        text.replace("OWNER/torchkiln", "octo/kiln")
        .replace("registry.example/team/pytorch-cuda@sha256:" + "0" * 64, IMAGE)
        .replace("0" * 40, commit)
    )


def test_the_pipeline_is_valid_and_calls_the_gate(tmp_path: Path) -> None:
    """Linters accept it, and its inputs are those of the called workflow."""
    example = EXAMPLES / "gate" / "train.yml"
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "train.yml").write_text(filled(example.read_text(), "1a" * 20))
    job = loaded(example)["jobs"]["gate"]
    inputs = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    needed = {key for key, given in inputs.items() if given.get("required") == "true"}

    assert zizmor(tmp_path / ".github") == ""
    assert schema("github-workflows", example) == ""
    assert needed <= set(job["with"]) <= set(inputs)
    assert job["uses"] == f"{job['with']['torchkiln']}/.github/workflows/gate.yml@{job['with']['ref']}"


def test_the_pipeline_verifies_and_then_runs_the_script(tmp_path: Path) -> None:
    """With stubs for torchkiln and docker; a bad signature ends it before the script."""
    place = scene(tmp_path)
    text = filled((EXAMPLES / "gate" / "train.yml").read_text(), place.last)
    inputs = yaml.safe_load(text)["jobs"]["gate"]["with"]

    assert [line for line in gate(place, **inputs) if line.code] == []
    assert place.calls("torchkiln", "verify") == [
        [IMAGE, "--key", "publisher=.github/publisher.pub.pem", "--key", "laboratory=.github/lab.pub.pem"]
    ]
    assert place.calls("docker", "run")[0][-1] == inputs["script"]
    place.remember("tampered")
    assert gate(place, **inputs)[-1].code == 1
    assert len(place.calls("docker", "run")) == 1
