"""Builds from the committed files: the printed commands, and docker-bake.json."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import NAME, TAG, Scene
from tests.needs import nightly
from tests.realpip import locked_pip
from tests.servers.index_server import IndexServer
from tests.unpublished import locked_wheel
from torchkiln.locks.lock import load_locked, save
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

BASE = "torchkiln-test-base:by-hand"
SIBLING = "2.4.1-cuda12.1-cudnn9-runtime"  # a name that no other test uses in the engine
CHANGED = "2.5.1-cuda12.1-cudnn9-runtime"
EXTRA = tuple(f"extra-{number}" for number in range(8))  # more wheels than get a mount each
STEPS = ("triton", "torch", "wheels-3")  # steps that install wheels, in order


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A folder with images/ and rootfs/, and with the programs that the commands in Dockerfiles run."""

    folder: Path
    environ: Mapping[str, str]

    def commands(self, tag: str) -> list[str]:
        """The commands in the header of *tag*'s Dockerfile."""
        text = (self.folder / "images" / tag / "Dockerfile").read_text()
        return re.findall(r"^#   (.*)$", text, re.MULTILINE)

    def run(self, command: str) -> str:
        """The output of *command*, run by a shell in the folder."""
        ran = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=dict(self.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    def build(self, tag: str) -> tuple[list[str], list[str]]:
        """Run the printed commands; returns the steps that ran and those from BuildKit's cache."""
        download, build = self.commands(tag)
        self.run(download)
        return steps(self.run(build))

    def python(self, folder: Path, interpreter: str) -> Checkout:
        """The checkout with a script `pip` in *folder*, which runs the pip of *interpreter*."""
        script(folder / "pip", f'exec {interpreter} -m pip "$@"')
        return replace(self, environ={**self.environ, "PATH": f"{folder}:{self.environ['PATH']}"})


def script(place: Path, text: str) -> None:
    """Write an executable shell script."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def steps(output: str) -> tuple[list[str], list[str]]:
    """The steps of the Dockerfile that ran and those that were cached, each as one word."""
    names = dict(re.findall(r"^#(\d+) \[[^\]]* \d+/\d+\] (.*)$", output, re.MULTILINE))
    ended = dict(re.findall(r"^#(\d+) (CACHED|DONE)", output, re.MULTILINE))
    ran, cached = [], []
    for number, name in sorted(names.items(), key=lambda item: int(item[0])):
        if not name.startswith("FROM "):
            (cached if ended[number] == "CACHED" else ran).append(short(name))
    return ran, cached


def short(name: str) -> str:
    """A word that identifies the step."""
    found = re.search(
        r"target=/wheels/(\w+?)-|from=(wheels-\d+)|(requirements\.txt) |--from=(wheels) |(apt-get)|(useradd)"
        r"|(compileall)|--from=(rootfs)|(image\.json)|/(constraints\.txt)|(WORKDIR)",
        name,
    )
    assert found, name
    return next(word for word in found.groups() if word)


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    """Wheels for several platforms, one of them only for this Python."""
    mark = (
        b"# " + os.urandom(8).hex().encode()
    )  # unique to this run, because the engine may have cached steps with the same wheels
    with IndexServer() as server:
        server.add(
            "simple",
            "triton",
            "1.0",
            payload=mark,
            tag="cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
        )
        server.add("simple", "torch", "1.0", tag="cp311-cp311-manylinux1_x86_64", python=">=3.11.1,<3.12")
        server.add("simple", "torch", "2.0", tag="cp311-cp311-manylinux_2_28_x86_64")
        server.add("simple", "sympy", "1.0", tag="cp36-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64")
        server.add("simple", "sympy", "2.0")
        for name in EXTRA:
            server.add("simple", name, "1.0", payload=mark)
        yield server


@pytest.fixture(scope="module")
def checkout(scene: Scene, index: IndexServer, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Three cells: the second has a different torch than the first, the third a different small wheel."""
    folder, store = tmp_path_factory.mktemp("checkout"), Store(scene.cache)
    pip = locked_pip()
    index.files["simple", "pip", pip.filename] = store.wheel(pip).read_bytes()
    (folder / "made").mkdir()
    wheels = {}
    for (_, name, filename), data in index.files.items():
        (folder / "made" / filename).write_bytes(data)
        wheel = wheels[name, filename.split("-")[1]] = locked_wheel(folder / "made" / filename)
        place = store.wheel(wheel)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / "made" / filename, place)
    base = load_locked(scene.images, TAG).base
    for tag, torch, sympy in ((TAG, "1.0", "1.0"), (SIBLING, "2.0", "1.0"), (CHANGED, "1.0", "2.0")):
        versions = {
            "triton": "1.0",
            "torch": torch,
            "sympy": sympy,
            "pip": pip.version,
            **dict.fromkeys(EXTRA, "1.0"),
        }
        chosen = tuple(wheels[name, versions[name]] for name in sorted(versions))
        save(
            folder / "images", replace(load_locked(ROOT / "images", tag), base=base, wheels=chosen, layers=())
        )
    (folder / "rootfs").symlink_to(ROOT / "rootfs")
    rendered = scene.command(
        "render", "--images", str(folder / "images"), "--matrix", str(ROOT / "matrix.yaml")
    )
    assert rendered.returncode == 0, rendered.stderr

    scene.docker("import", str(store.blob(base.digest)), BASE)
    docker = shutil.which("docker", path=scene.environ["PATH"])
    # Docker Hub's image, the base of the printed command, is not reachable from every test machine.
    script(
        folder / "bin/docker",
        f'shift 2\nexec {docker} buildx build --progress=plain --build-arg BASE={BASE} "$@"',
    )
    environ = {name: value for name, value in scene.environ.items() if not name.startswith("PIP_")}
    environ |= {
        "PATH": f"{folder / 'bin'}:{environ['PATH']}",
        "PIP_INDEX_URL": index.url("simple"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    return Checkout(folder=folder, environ=environ)


def interpreter(version: str) -> str:
    """A Python of *version* with pip."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    programs = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    found = [program for program in programs if f"(python {version})" in pip_version(program)]
    if not found:
        pytest.skip(f"no Python {version} with pip: pyenv install {version}")
    return found[0]


def pip_version(program: str) -> str:
    """The version of *program*'s pip; empty if there is none."""
    argv = ["sh", "-c", f"{program} -m pip --version"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


@pytest.mark.network
@pytest.mark.parametrize(
    "version", ["3.11", *(pytest.param(version, marks=nightly) for version in ("3.10", "3.12", "3.13"))]
)
def test_the_printed_download_fetches_the_locked_wheels(
    checkout: Checkout, tmp_path: Path, version: str
) -> None:
    """The command downloads wheels for the image's Python and platform, whichever Python runs pip."""
    host = checkout.python(tmp_path / "bin", interpreter(version))
    shutil.rmtree(checkout.folder / "wheels", ignore_errors=True)

    host.run(host.commands(TAG)[0])

    fetched = {path.name for path in (checkout.folder / "wheels").iterdir()}
    assert fetched == {wheel.filename for wheel in load_locked(checkout.folder / "images", TAG).wheels}


@pytest.fixture(scope="module")
def built(checkout: Checkout) -> list[str]:
    """All steps of the first build. Steps before the wheels may be in the engine's cache."""
    ran, cached = checkout.build(TAG)
    assert set(cached) <= {"apt-get", "useradd"}
    return [*cached, *ran]


@pytest.mark.network
def test_the_printed_build_names_an_image_of_the_locked_wheels(
    checkout: Checkout, built: list[str], scene: Scene
) -> None:
    code = "import pip, torch; print(pip.__version__, torch.__file__)"
    output = scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", code).split()

    assert output == [locked_pip().version, "/opt/venv/lib/python3.11/site-packages/torch/__init__.py"]
    assert [step for step in built if step in STEPS] == list(STEPS)


@pytest.mark.network
def test_another_file_beside_the_wheels_keeps_all_steps_cached(checkout: Checkout, built: list[str]) -> None:
    (checkout.folder / "wheels" / "other-1.0-py3-none-any.whl").write_bytes(b"another image's")

    ran, cached = checkout.build(TAG)

    assert ran == []
    assert sorted(cached) == sorted(built)


@pytest.mark.network
def test_another_image_repeats_the_steps_from_the_first_different_wheel(
    checkout: Checkout, built: list[str]
) -> None:
    """BuildKit repeats the steps from there on, and the step that selects lines of requirements.txt."""
    ran, cached = checkout.build(SIBLING)

    assert sorted(cached) == ["apt-get", "triton", "useradd", "wheels"]
    assert sorted(ran) == sorted(step for step in built if step not in cached)


@nightly
@pytest.mark.network
def test_a_changed_small_wheel_repeats_the_steps_of_the_small_wheels(
    checkout: Checkout, built: list[str]
) -> None:
    ran, cached = checkout.build(CHANGED)

    assert sorted(cached) == ["apt-get", "torch", "triton", "useradd"]
    assert sorted(ran) == sorted(step for step in built if step not in cached)


@nightly
@pytest.mark.network
def test_a_stage_of_many_wheels_matches_the_embedded_engine(checkout: Checkout, scene: Scene) -> None:
    """Compare with `build --engine docker`, for more wheels than test_parity.py has."""
    cell = ("--torch", "2.7", "--cuda", "12.1", "--images", str(checkout.folder / "images"))
    for arguments, name in (
        (("--engine", "docker"), "many:theirs"),
        (("--load", "--output", "many"), "many:ours"),
    ):
        ran = scene.command("build", *cell, *arguments)
        assert ran.returncode == 0, ran.stderr
        scene.docker("tag", NAME, name)

    found = scene.parity("docker:many:theirs", "docker:many:ours")

    assert found.left == found.idle == ()
    assert (
        scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", "import extra_7, sympy, torch")
        == ""
    )


# --- docker-bake.json ------------------------------------------------------------------------------


TARGET = "2-7-1-cuda12-1-cudnn9-runtime"


def bake(where: Path, environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`docker buildx bake` in the folder that has images/ and rootfs/."""
    argv = ["docker", "buildx", "bake", "-f", "images/docker-bake.json", *arguments]
    return subprocess.run(argv, cwd=where, env=dict(environ), capture_output=True, text=True, check=False)


def test_buildx_reads_the_committed_file(engine: Mapping[str, str]) -> None:
    """The file has a target for each committed Dockerfile, the expected groups, and variables."""
    ran = bake(ROOT, {**engine, "REPOSITORY": "registry.example/torch"}, "--print", "torch-2-7", "cuda-11-7")
    assert ran.returncode == 0, ran.stderr
    definition: dict[str, Any] = json.loads(ran.stdout)

    assert definition["group"]["torch-2-7"]["targets"] == [TARGET, f"{TARGET}-debian13"]
    assert set(definition["target"]) == {TARGET, f"{TARGET}-debian13", "2-0-1-cuda11-7-cudnn8-runtime"}
    built = definition["target"][TARGET]
    assert built["context"] == f"images/{TAG}"
    assert built["args"]["BASE"] == "debian:12-slim"
    assert built["tags"][0] == f"registry.example/torch:{TAG}"

    everything = json.loads(bake(ROOT, engine, "--print").stdout)
    contexts = {target["context"] for target in everything["target"].values()}
    tags = (path.parent.name for path in ROOT.glob("images/*/Dockerfile"))
    committed = {f"images/{tag}" for tag in tags if not load_locked(ROOT / "images", tag).by_record}
    assert contexts == {name for name in committed if not name.endswith("-devel") or "cuda13" in name}
    devel = json.loads(bake(ROOT, engine, "--print", "devel").stdout)
    assert {target["context"] for target in devel["target"].values()} >= committed - contexts


@pytest.mark.network
def test_a_target_is_built(scene: Scene) -> None:
    """buildx builds a target from a folder of wheels and the engine's base, under the repository's name."""
    where, store = scene.images.parent, Store(scene.cache)
    locked = load_locked(scene.images, TAG)
    scene.docker("import", str(store.blob(locked.base.digest)), "torchkiln-test-base:1")
    (where / "wheels").mkdir()
    for wheel in locked.wheels:
        os.link(store.wheel(wheel).resolve(), where / "wheels" / wheel.filename)
    (where / "rootfs").symlink_to(ROOT / "rootfs")
    rendered = scene.command("render", "--images", str(scene.images), "--matrix", str(ROOT / "matrix.yaml"))
    assert rendered.returncode == 0, rendered.stderr

    settings = {"REPOSITORY": "baked", "BASE_DEBIAN12": "torchkiln-test-base:1"}
    ran = bake(where, {**scene.environ, **settings}, "--load", "runtime")
    assert ran.returncode == 0, ran.stderr

    code = "import torch, importlib.metadata as m; print(m.version('pip'))"
    output = scene.docker("run", "--rm", "--entrypoint", "python", "baked:v2.7", "-c", code).strip()
    assert output == next(wheel.version for wheel in locked.wheels if wheel.name == "pip")
