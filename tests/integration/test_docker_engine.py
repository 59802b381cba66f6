"""`build --engine docker` on a real engine: generated wheels, the real base, the locked pip."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cells import small_wheels
from tests.parity import Image, differences, read_image
from tests.realpip import locked_pip
from tests.roots import tiny_root
from tests.unpublished import locked_wheel
from torchkiln.base import artefact
from torchkiln.cli.options import cache_root
from torchkiln.engines.daemon import Engine, load
from torchkiln.engines.observer import Silent
from torchkiln.errors import BuildFailed
from torchkiln.index.download import open_downloads
from torchkiln.lock import load_locked, save
from torchkiln.oci.layout import open_layout
from torchkiln.places import ROOT
from torchkiln.store import Store

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
NAME = f"pytorch-cuda:{TAG}"

pytestmark = pytest.mark.network  # pip's wheel, and where the cache has none, the base


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A cell that a real engine can build in seconds."""

    images: Path
    cache: Path
    environ: Mapping[str, str]

    def kiln(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`build --torch 2.7 --cuda 12.1 ...` as a user types it."""
        argv = [ROOT / ".venv/bin/python", ROOT / "build.py", "build", "--torch", "2.7", "--cuda", "12.1"]
        return subprocess.run(
            [*argv, "--images", self.images, *arguments],
            env={**self.environ, "TORCHKILN_CACHE": str(self.cache), **environ},
            cwd=self.images.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    def docker(self, *arguments: str) -> str:
        """What Docker's own client answers."""
        return subprocess.run(
            ["docker", *arguments], env=dict(self.environ), capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, engine: Mapping[str, str]) -> Scene:
    """Lock, wheels and base; the base from the user's cache where it is there."""
    root = tmp_path_factory.mktemp("docker")
    kept, store = Store(cache_root()), Store(root / "cache")
    locked = load_locked(ROOT / "images", TAG)
    base, _ = artefact.ensure(locked.base, kept, os_name="debian12", environ=os.environ)
    pip = locked_pip()
    files = [*small_wheels(root), open_downloads(os.environ, kept).fetch_wheel(pip, kept)]
    wheels = tuple(sorted((*(locked_wheel(file) for file in files[:-1]), pip), key=lambda wheel: wheel.name))
    cell = replace(locked, base=base, wheels=wheels, layers=())
    save(root / "images", cell)
    for path, place in (
        (kept.blob(base.digest), store.blob(base.digest)),
        *((file, store.wheel(wheel)) for file in files for wheel in wheels if wheel.filename == file.name),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path) if path.stat().st_dev != root.stat().st_dev else os.link(path, place)
    return Scene(images=root / "images", cache=store.root, environ=engine)


@pytest.fixture(scope="module")
def built(scene: Scene) -> dict[str, Any]:
    """The answer of one build."""
    ran = scene.kiln("--engine", "docker", "--json")
    assert ran.returncode == 0, ran.stderr
    assert "RUN --mount" in ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def test_the_image_is_in_the_engine_under_its_names(scene: Scene, built: dict[str, Any]) -> None:
    assert built["names"] == [NAME, "pytorch-cuda:2.7-cuda12.1-runtime", "pytorch-cuda:v2.7"]
    for name in (NAME, "pytorch-cuda:v2.7"):
        (found,) = json.loads(scene.docker("image", "inspect", name))
        assert found["Id"] == built["digest"]
        assert found["Config"]["WorkingDir"] == "/workspace"
        assert found["Config"]["Labels"]["org.opencontainers.image.version"] == TAG


def test_the_answer_tells_the_base(scene: Scene, built: dict[str, Any]) -> None:
    (lock,) = scene.images.glob("*/lock.json")
    assert built["base"] == json.loads(lock.read_bytes())["base"]["digest"]
    assert built["base_newer_than_lock"] == []


def test_what_was_locked_is_installed(scene: Scene, built: dict[str, Any]) -> None:
    code = "import torch, sympy, importlib.metadata as m; print(torch.__file__, m.version('pip'))"
    said = scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", code).split()

    assert said == ["/opt/venv/lib/python3.11/site-packages/torch/__init__.py", locked_pip().version]


def test_the_same_build_again_is_the_same_image(scene: Scene, built: dict[str, Any]) -> None:
    again = scene.kiln("--engine", "docker")

    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == built["digest"]


def test_what_our_own_engine_built_is_loaded_and_runs(scene: Scene) -> None:
    """Under its tag and aliases, in place of the image that BuildKit made."""
    ran = scene.kiln("--load", "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)

    assert told["loaded"] == [NAME, "pytorch-cuda:2.7-cuda12.1-runtime", "pytorch-cuda:v2.7"]
    for name in told["loaded"]:
        (found,) = json.loads(scene.docker("image", "inspect", name))
        assert found["RootFS"]["Layers"] == [layer["diff_id"] for layer in told["layers"]]
    code = "import torch, sys; print(torch.__file__, sys.prefix)"
    said = scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", code).split()
    assert said == ["/opt/venv/lib/python3.11/site-packages/torch/__init__.py", "/opt/venv"]


def test_an_image_with_a_lost_layer_is_not_loaded(scene: Scene) -> None:
    """Nor waits anybody for the rest of it, and no name points at half an image."""
    assert scene.kiln("--output", "broken").returncode == 0
    image = open_layout(scene.images.parent / "broken").image(TAG)
    image.layers[3].path.unlink()
    host = scene.environ["DOCKER_HOST"]

    with pytest.raises(BuildFailed, match=r"could not be loaded.*No such file"):
        load(image, ["cut:1"], Engine(host=host, version="", buildx=()), Silent())

    assert scene.docker("image", "ls", "--quiet", "cut:1") == ""


def test_the_engine_of_a_context(scene: Scene, built: dict[str, Any]) -> None:
    """As Docker's client finds it: by the context in DOCKER_CONTEXT, where there is no DOCKER_HOST."""
    host = scene.environ["DOCKER_HOST"]
    scene.docker("context", "create", "far", "--docker", f"host={host}")
    by_context = replace(scene, environ={k: v for k, v in scene.environ.items() if k != "DOCKER_HOST"})
    try:
        ran = by_context.kiln("--engine", "docker", "--json", DOCKER_CONTEXT="far")
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout)
        assert (told["digest"], told["engine"]["host"]) == (built["digest"], host)

        ran = by_context.kiln("--engine", "docker", DOCKER_CONTEXT="farther")
        assert ran.returncode == 8
        assert re.search('no Docker context: .*"farther"', ran.stderr)
    finally:
        scene.docker("context", "rm", "far")


THEIRS, OURS, PLANTED = "parity:theirs", "parity:ours", "parity:planted"


@pytest.fixture(scope="module")
def theirs(scene: Scene, built: dict[str, Any]) -> Image:
    """What BuildKit and pip made."""
    assert scene.kiln("--engine", "docker", "--quiet").stdout.strip() == built["digest"]
    scene.docker("tag", NAME, THEIRS)
    return read_image(THEIRS, scene.environ)


@pytest.fixture(scope="module")
def ours(scene: Scene, theirs: Image) -> Image:
    """What our own engine made, loaded."""
    assert scene.kiln("--load").returncode == 0
    scene.docker("tag", NAME, OURS)
    return read_image(OURS, scene.environ)


def test_both_engines_give_the_same_image(theirs: Image, ours: Image) -> None:
    """Every path, kind, mode, owner, content, link and setting, but for the short list in tests/parity.py."""
    assert len(ours.tree) > 10_000
    assert differences(theirs, ours) == []


_SITE = "/opt/venv/lib/python3.11/site-packages"
_CHANGES = {
    "RUN chmod 0711 /opt/torchkiln": ["opt/torchkiln: mode: theirs 493, ours 457"],
    "RUN chown 7:8 /opt/venv/bin/torch": [r"opt/venv/bin/torch: owner: theirs \(0, 0\), ours \(7, 8\)"],
    "RUN echo >> /opt/venv/bin/triton": [f"opt/venv/bin/triton: {what}: .*" for what in ("size", "sha256")],
    "RUN ln -sf python4 /opt/venv/bin/python": ["opt/venv/bin/python: link: theirs .*, ours 'python4'"],
    "RUN rm /opt/venv/bin/sympy && mkdir /opt/venv/bin/sympy": [
        f"opt/venv/bin/sympy: {what}: .*" for what in ("kind", "size", "sha256")
    ],
    "RUN rm /opt/venv/bin/networkx": ["opt/venv/bin/networkx: only in theirs"],
    "RUN touch /opt/more": ["opt/more: only in ours"],
    f"RUN sed -i '/lib.so/d' {_SITE}/torch-1.0.dist-info/RECORD": [
        r"opt/.*/torch-1.0.dist-info/RECORD: line torch/lib.so,sha256=.* is not in both"
    ],
    f"RUN chmod 0600 {_SITE}/torch-1.0.dist-info/INSTALLER": [
        "opt/.*/torch-1.0.dist-info/INSTALLER: mode: theirs 420, ours 384"
    ],
    "ENV PATH=/bin": ["config Env: .*"],
    "LABEL a=b": ["config Labels: .*"],
    "EXPOSE 9": ["config ExposedPorts: .*"],
    "USER 7": ["config User: .*"],
}


def test_planted_differences_are_found(scene: Scene, theirs: Image, ours: Image, tmp_path: Path) -> None:
    """Of each kind one, made by Docker on top of our image; each is told, and nothing else is."""
    (tmp_path / "Dockerfile").write_text("\n".join([f"FROM {OURS}", *_CHANGES, ""]))
    scene.docker("buildx", "build", "--quiet", "--load", "--tag", PLANTED, str(tmp_path))

    found = differences(theirs, read_image(PLANTED, scene.environ))

    patterns = [pattern for expected in _CHANGES.values() for pattern in expected]
    for pattern in patterns:
        assert [line for line in found if re.fullmatch(pattern, line)], (pattern, found)
    assert len(found) == len(patterns), found


def test_a_step_that_fails_is_shown_with_its_last_lines_and_its_place(scene: Scene, tmp_path: Path) -> None:
    """A base of a shell and little else: no dpkg, no apt-get."""
    root = tiny_root(tmp_path / "root")
    with (tmp_path / "root.tar").open("wb") as out:
        subprocess.run(["tar", "-C", root, "-c", "."], stdout=out, check=True)
    scene.docker("import", str(tmp_path / "root.tar"), "tiny:1")

    ran = scene.kiln("--engine", "docker", "--base", "tiny:1", "--json")

    assert ran.returncode == 6
    assert ran.stdout == ""
    error = ran.stderr[ran.stderr.index("error: ") :]
    assert re.match(
        r"error: step '\[stage-\d \d+/\d+\] RUN set --;.*failed: .*exit code: 127", error, re.DOTALL
    )
    assert "apt-get: not found" in error
    assert re.search(r"Dockerfile:\d+\n", error)
    assert ">>> RUN set --;" in error
    assert "Traceback" not in ran.stderr
    assert list((scene.cache / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("unix:///nowhere/docker.sock", "No such file or directory.*\nhint: start Docker"),
        ("tcp://127.0.0.1:9", "Connection refused.*\nhint: start Docker"),
        ("nonsense", "\nhint: look at DOCKER_HOST"),
    ],
)
def test_an_engine_that_does_not_answer_is_told_with_what_to_do(scene: Scene, host: str, told: str) -> None:
    ran = scene.kiln("--engine", "docker", DOCKER_HOST=host)

    assert ran.returncode == 8
    assert re.search(f"(?s)^error: no Docker engine answers at {host}: .*{told}", ran.stderr, re.MULTILINE)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--engine", "docker", "--output", "x"), "--output is for --engine embedded"),
        (("--builder", "b"), "--builder is for --engine docker"),
        (("--base", "nowhere.tar"), "nowhere.tar: no such file"),
    ],
)
def test_what_belongs_to_the_other_engine_is_refused(
    scene: Scene, arguments: tuple[str, ...], told: str
) -> None:
    ran = scene.kiln(*arguments)

    assert ran.returncode == 2
    assert told in ran.stderr
