"""Components by both engines: BuildKit with pip, and ours; and conda's program in a container."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docker.scene import TAG, Scene
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.lock.lock import inputs_digest, load_locked, save
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedComponent, LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # pip's wheel, and if it is not cached, the base

NAME = f"pytorch-cuda:{TAG}-conda-transformers"
LIST = str(ROOT / "torchkiln/data/parity.yaml")
BOUND = ("torch", "torchvision", "torchaudio", "triton")
# The tested commands of conda's program: its hook, and its location.
PROGRAM = b"""\
#!/bin/sh
case $1 in
    shell) echo 'micromamba() { echo "hooked: $*"; }' ;;
    *) echo "$0 $* in $MAMBA_ROOT_PREFIX" ;;
esac
"""


@pytest.fixture(scope="module")
def with_components(scene: Scene) -> tuple[str, ...]:
    """Options that name the cell with conda and transformers, whose lock is beside the plain one."""
    root = scene.images.parent / "components"
    root.mkdir()
    known = facts.load()
    matrix_text = (ROOT / "matrix.yaml").read_text()
    official = next(
        component.program for component in matrix.load(matrix_text, known).components if component.program
    )
    matrix_text = matrix_text.replace(official.sha256, hashlib.sha256(PROGRAM).hexdigest())
    file = root / "matrix.yaml"
    file.write_text(matrix_text)
    grid = matrix.load(matrix_text, known)
    cell = select(Selection(torch=("2.7",), cuda=("12.1",), components=("conda,transformers",)), grid)[0]
    resolution = resolve(cell, grid, known)
    spec = WheelSpec(
        name="transformers",
        files=(File(path="transformers/__init__.py", data=b"import torch\nlayers = torch.main()\n"),),
        console=(("transformers", "torch:main"),),
    )
    wheel = write_wheel(spec, root)
    (root / official.filename).write_bytes(PROGRAM)
    program = LockedWheel(
        name="micromamba",
        version=official.version,
        filename=official.filename,
        sha256=hashlib.sha256(PROGRAM).hexdigest(),
        size=len(PROGRAM),
        index=Source.OWN,
    )
    plain, new, store = load_locked(scene.images, TAG), locked_wheel(wheel), Store(scene.cache)
    for locked, path in ((new, wheel), (program, root / official.filename)):
        store.wheel(locked).parent.mkdir(parents=True)
        os.link(path, store.wheel(locked))
    save(
        scene.images,
        replace(
            plain,
            resolution=resolution,
            wheels=tuple(sorted((*plain.wheels, new), key=lambda one: one.name)),
            inputs=inputs_digest(resolution, BOUND),
            components=(
                LockedComponent(name="conda", wheels=(), program=program),
                LockedComponent(name="transformers", wheels=("transformers",)),
            ),
        ),
    )
    return ("--with", "conda,transformers", "--matrix", str(file))


@pytest.fixture(scope="module")
def image(scene: Scene, with_components: tuple[str, ...]) -> str:
    """Our image, in the engine; BuildKit's is there as `theirs:components`."""
    for arguments, name in ((("--engine", "docker"), "theirs:components"), (("--load",), "ours:components")):
        ran = scene.kiln(*with_components, *arguments)
        assert ran.returncode == 0, ran.stderr
        scene.docker("tag", NAME, name)
    return "ours:components"


def test_both_engines_give_the_same_image(scene: Scene, image: str) -> None:
    ran = scene.command(
        "diff",
        "--json",
        "--exit-code",
        "--files",
        "--allow",
        LIST,
        "docker:theirs:components",
        f"docker:{image}",
    )
    matrix_text = json.loads(ran.stdout)
    assert (ran.returncode, matrix_text["differences"]) == (0, []), matrix_text["differences"]
    assert matrix_text["b"]["paths"] > 5_000


def test_the_component_and_the_plain_image_see_each_other(scene: Scene, image: str) -> None:
    say = "import transformers, torch; print(transformers.layers, transformers.__file__)"
    output = scene.docker("run", "--rm", "--entrypoint", "python", image, "-c", say)
    assert output == "0 /opt/venv/lib/python3.11/site-packages/transformers/__init__.py\n"


@pytest.mark.parametrize("user", ["0", "1000:1000", "4711:4711"])
def test_conda_comes_after_the_images_programs_on_the_path(scene: Scene, image: str, user: str) -> None:
    words = (
        "command -v python; command -v conda; micromamba --version; conda --version; echo $HOME; echo $PATH"
    )
    output = scene.docker("run", "--rm", "--user", user, image, "sh", "-c", words).splitlines()
    *matrix_text, home, path = output[-6:]
    assert matrix_text == [
        "/opt/venv/bin/python",
        "/opt/conda/condabin/conda",
        "/opt/conda/condabin/micromamba --version in /opt/conda",
        "/opt/conda/condabin/conda --version in /opt/conda",
    ]
    assert path.startswith("/opt/venv/bin:")
    assert path.partition(":/opt/conda/condabin")[2] in ("", f":{home}/.local/bin")


def test_an_interactive_bash_loads_the_hook_if_enabled(scene: Scene, image: str) -> None:
    """As SSH, tmux and Jupyter start it; by each of the three names."""
    words = "type -t conda; conda activate work; type conda | grep -c torchkiln; mamba list; micromamba info"
    output = scene.docker("run", "--rm", image, "bash", "-ic", words).splitlines()
    assert output[-5:] == ["function", "hooked: activate work", "0", "hooked: list", "hooked: info"]


def test_the_image_can_be_built_from_the_files_of_a_checkout(
    scene: Scene, with_components: tuple[str, ...]
) -> None:
    """`render` writes the files that the Dockerfile copies."""
    ran = scene.command(
        "render", "--torch", "2.7", "--cuda", "12.1", *with_components, "--images", str(scene.images)
    )
    assert ran.returncode == 0, ran.stderr
    folder = scene.images / f"{TAG}-conda-transformers"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "components/etc/bash_completion.d/torchkiln-conda" in there
    dockerfile = (folder / "Dockerfile").read_text()
    assert "\ntransformers==" in dockerfile
    assert (
        "COPY --from=programs --chmod=0755 micromamba-linux-64 /opt/conda/condabin/micromamba" in dockerfile
    )
    assert Path(folder / "components/opt/conda/conda-meta/history").read_bytes() == b""
