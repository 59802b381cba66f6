"""Ubuntu 22.04 from base to image, with an archive in Ubuntu's layout, Python 3.10 and small wheels.

Because the archive is not Ubuntu's, lock and image are marked as untrusted, and the gate refuses the image.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from tests.cells import small_wheels
from tests.docker.scene import Scene
from tests.servers import ubuntu_archive
from tests.unpublished import locked_wheel
from torchkiln.base import artefact
from torchkiln.index.download import open_downloads
from torchkiln.locks.lock import load_locked, save
from torchkiln.matrix import facts
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.network, pytest.mark.proof]

TAG = "2.7.1-cuda12.1-cudnn9-runtime-ubuntu22.04"
NAME = f"pytorch-cuda:{TAG}"
CELL = ("--torch", "2.7.1", "--cuda", "12.1", "--os", "ubuntu22.04")
UNTRUSTED = "uses an untrusted source"


@pytest.fixture(scope="module")
def ubuntu(tmp_path_factory: pytest.TempPathFactory, engine: Mapping[str, str]) -> Iterator[Scene]:
    """A base and a lock, made by torchkiln's commands; the lock uses the real default index."""
    ubuntu_archive.require()
    root = tmp_path_factory.mktemp("jammy")
    archive = ubuntu_archive.make(root / "archive")
    with archive.served() as address:
        scene = Scene(
            images=root / "images", cache=root / "cache", environ={**engine, **archive.environ(address)}
        )
        for words in (("base", "build", "--os", "ubuntu22.04"), ("lock", *CELL)):
            ran = scene.command(*words, "--images", str(scene.images))
            assert ran.returncode == 0, ran.stderr
        assert f"lock: {TAG}: warning: {UNTRUSTED}" in ran.stderr
        yield scene


@pytest.fixture(scope="module")
def small(ubuntu: Scene) -> Scene:
    """The cell with small wheels and the locked pip, built by both engines."""
    store, user_cache = Store(ubuntu.cache), Store(cache_root())
    full_lock = load_locked(ubuntu.images, TAG)
    pip = next(wheel for wheel in full_lock.wheels if wheel.name == "pip")
    files = [
        *small_wheels(ubuntu.cache / "small"),
        open_downloads(os.environ, user_cache).fetch_wheel(pip, user_cache),
    ]
    wheels = tuple(sorted((*map(locked_wheel, files[:-1]), pip), key=lambda wheel: wheel.name))
    images = ubuntu.images.with_name("small")
    artefact.write_lock(images, full_lock.base)
    save(images, replace(full_lock, wheels=wheels, layers=()))
    for file in files:
        place = store.wheel(next(wheel for wheel in wheels if wheel.filename == file.name))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    scene = replace(ubuntu, images=images)
    for words, name in ((("--engine", "docker"), "ubuntu:theirs"), (("--load",), "ubuntu:ours")):
        ran = built(scene, *words)
        assert (ran[0], f"torchkiln: warning: the lock {UNTRUSTED}" in ran[2]) == (0, True), ran[2]
        scene.docker("tag", NAME, name)
    return scene


def built(scene: Scene, *words: str) -> tuple[int, str, str]:
    ran = scene.command("build", *CELL, "--images", str(scene.images), *words)
    return ran.returncode, ran.stdout, ran.stderr


def test_the_base_follows_the_recipe_and_names_its_sources(ubuntu: Scene) -> None:
    """The base's sources.list is mmdebstrap's default for jammy, without the URL of the local archive."""
    base = artefact.read_lock(ubuntu.images, "ubuntu22.04")
    assert base is not None
    assert base.untrusted
    assert base.python.startswith("3.10.")
    assert {"python3.10-minimal", "tini", "libnss-wrapper"} <= {package.name for package in base.packages}


def test_every_locked_wheel_is_for_python_3_10(ubuntu: Scene) -> None:
    """torch's wheel is that of the facts; the lock's wheels differ from debian12's."""
    locked = load_locked(ubuntu.images, TAG)
    tags = {wheel.name: parse_wheel_filename(wheel.filename)[3] for wheel in locked.wheels}

    def fits(tag: Tag) -> bool:
        return tag.interpreter == "cp310" or tag.abi == "abi3" or tag.interpreter.startswith("py")

    assert [name for name, of in tags.items() if not any(map(fits, of))] == []
    assert {tag.interpreter for tag in tags["torch"]} == {"cp310"}
    assert (
        next(wheel.sha256 for wheel in locked.wheels if wheel.name == "torch")
        == dict(facts.load().releases["2.7.1"].default.sha256)["cp310"]
    )
    committed = load_locked(ROOT / "images", TAG.removesuffix("-ubuntu22.04"))
    assert {wheel.sha256 for wheel in locked.wheels} != {wheel.sha256 for wheel in committed.wheels}
    assert b"127.0.0.1" not in (ubuntu.images / TAG / "lock.json").read_bytes()


# Prints path and hash of the code in each .pyc. Marshal's references to objects do not change the hash.
_MEANING = """
import hashlib, marshal, pathlib, types

def meaning_of(one):
    if isinstance(one, types.CodeType):
        left_out = ("co_lines", "co_linetable", "co_lnotab")  # co_lines() is what they mean
        fields = (name for name in dir(one) if name.startswith("co_") and name not in left_out)
        return {name: meaning_of(getattr(one, name)) for name in fields} | {"lines": list(one.co_lines())}
    if isinstance(one, (tuple, list)):
        return [type(one).__name__, *map(meaning_of, one)]
    if isinstance(one, frozenset):
        return ["frozenset", *sorted(map(repr, one))]
    return repr(one)

for path in sorted(pathlib.Path("/opt/venv").rglob("*.pyc")):
    data = path.read_bytes()
    meaning = repr(meaning_of(marshal.loads(data[16:]))).encode()
    print(path, data[:16].hex(), hashlib.sha256(meaning).hexdigest())
"""


def test_both_engines_give_the_same_image(small: Scene) -> None:
    """The images are equal, except for references in .pyc files of Python 3.10 (see docs/systems.md)."""
    found = small.parity("docker:ubuntu:theirs", TAG)

    assert [one for one in found.left if not one.at.endswith(".cpython-310.pyc")] == []
    assert {difference.what for difference in found.left} <= {"content"}
    assert found.paths > 5_000
    theirs, ours = (
        small.docker("run", "--rm", name, "python", "-c", _MEANING)
        for name in ("ubuntu:theirs", "ubuntu:ours")
    )
    assert ours.count(".cpython-310.pyc ") > 400
    assert pyc(theirs) == pyc(ours)


def pyc(printed: str) -> list[str]:
    """The lines that `_MEANING` printed, without those that the container's start prints."""
    return [line for line in printed.splitlines() if ".pyc " in line]


def test_a_command_runs_in_it_with_python_3_10(small: Scene) -> None:
    code = "import platform, sys, torch; print(platform.python_version(), sys.prefix, torch.__file__)"
    ran = small.command("run", TAG, "--", "python", "-c", code)

    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(
        r"3\.10\.\d+ /opt/venv /opt/venv/lib/python3\.10/site-packages/torch/__init__\.py\n", ran.stdout
    )
    in_docker = small.docker("run", "--rm", "ubuntu:theirs", "python", "-c", code)
    assert in_docker.splitlines()[-1:] == ran.stdout.splitlines()
    release = small.command("run", TAG, "--", "cat", "/etc/os-release").stdout
    assert "VERSION_CODENAME=jammy" in release


def test_the_image_is_marked_as_untrusted(small: Scene) -> None:
    """The image's labels and the output of the commands mark it as untrusted."""
    labels = json.loads(small.docker("inspect", "--format", "{{json .Config.Labels}}", "ubuntu:ours"))
    inside = json.loads(small.command("run", TAG, "--", "cat", "/etc/torchkiln/image.json").stdout)

    assert labels["torchkiln.untrusted"] == "true"
    assert inside["untrusted"] is True
    result = small.command("list", *CELL, "--images", str(small.images)).stdout
    assert "(untrusted)" in result
    assert UNTRUSTED in small.command("explain", *CELL, "--images", str(small.images)).stdout


def test_the_untrusted_image_cannot_be_published(small: Scene) -> None:
    code, _, result = built(small, "--locked")
    assert (code, UNTRUSTED in result) == (6, True)

    ran = small.command("gate", TAG, "--images", str(small.images))
    assert (ran.returncode, UNTRUSTED in ran.stdout + ran.stderr) == (7, True)
