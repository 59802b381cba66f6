"""devel from NVIDIA's archives: both engines give the same image, with the files that GNU tar unpacks."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cells import HOME, resolution, small_tools
from tests.docker.scene import TAG, Scene
from tests.planned import MATRIX
from tests.servers.cuda_archives import facts_from, write_small
from torchkiln.locks.lock import inputs_digest, load_locked, save
from torchkiln.store.store import Store

pytestmark = pytest.mark.network  # pip's wheel, and if it is not cached, the base

DEVEL = TAG.replace("runtime", "devel")
NAME, THEIRS = f"pytorch-cuda:{DEVEL}", "devel:theirs"
# The folder of NVIDIA's installer for each folder of its archives; written without torchkiln's table.
MOVED = {
    "include": "targets/x86_64-linux/include",
    "lib": "targets/x86_64-linux/lib",
    "pkg-config": "pkgconfig",
}
LEFT_OUT = (
    ".so",
    ".so.12",
    ".so.12.1.105",
    ".so.12.1.3.1",
    "cublas_static.a",
    "ptxcompiler_static.a",
    ".c",
    ".html",
)


@pytest.fixture(scope="module")
def devel(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the archives. The image is built twice: by BuildKit, into Docker, and by the embedded
    engine, into `dist`."""
    folder = tmp_path_factory.mktemp("redist")
    archives = write_small(folder)
    (folder / "redist.yaml").write_bytes(facts_from(folder, "12.1.1"))
    runtime = load_locked(scene.images, TAG)
    answer = resolution(archives)
    bound = MATRIX.indexes[0].packages
    save(
        scene.images,
        replace(
            runtime,
            resolution=answer,
            archives=archives,
            tools=small_tools(runtime.base, Store(scene.cache)),
            inputs=inputs_digest(answer, bound),
            layers=(),
        ),
    )
    for arguments in ((), ("--engine", "docker")):
        ran = kiln(scene, folder, "build", *arguments)
        assert ran.returncode == 0, ran.stderr
    scene.docker("tag", NAME, THEIRS)
    return folder


def kiln(scene: Scene, folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    cell = ("--torch", "2.7", "--cuda", "12.1", "--flavor", "devel", "--images", str(scene.images))
    environ = {"TORCHKILN_CUDA_ARCHIVES": str(folder), "TORCHKILN_CUDA_REDIST": str(folder / "redist.yaml")}
    return scene.command(command, *cell, *arguments, **environ)


def test_both_engines_give_the_same_image(scene: Scene, devel: Path) -> None:
    found = scene.parity(f"docker:{THEIRS}", DEVEL)

    assert found.left == found.idle == ()


def test_the_toolkit_has_the_files_of_the_archives(scene: Scene, devel: Path, tmp_path: Path) -> None:
    """The files are equal, in the folders of NVIDIA's installer. These contain no other files, only links."""
    expected = {}
    for archive in devel.rglob("*.tar.xz"):
        into = tmp_path / archive.name
        into.mkdir()
        subprocess.run(["tar", "-xJf", str(archive), "-C", str(into), "--strip-components=1"], check=True)
        for path in into.rglob("*"):
            name = str(path.relative_to(into))
            first, _, rest = name.partition("/")
            taken = "/stubs/" in name or "nvvm/lib64" in name or not name.endswith(LEFT_OUT)
            if path.is_file() and not path.is_symlink() and taken and "samples" not in name:
                component = archive.parent.parent.name
                place = f"{MOVED.get(first, first)}/{rest}" if rest else f"licenses/{component}/{first}"
                expected[f"/{HOME}/{place}"] = path.read_bytes()
    script = f"find /{HOME} -type f -exec sha256sum {{}} +"
    output = scene.docker("run", "--rm", "--entrypoint", "sh", THEIRS, "-c", script)
    there = {line.split()[1]: line.split()[0] for line in output.splitlines()}

    assert there == {path: hashlib.sha256(data).hexdigest() for path, data in expected.items()}
    assert len(there) > 15


def test_files_in_the_search_paths_of_compilers(scene: Scene, devel: Path) -> None:
    """A container finds headers, libraries and programs through the links."""
    script = (
        "nvcc; cat $CUDA_HOME/include/cuda.h $CUDA_HOME/lib64/stubs/libcuda.so"
        " $CUDA_HOME/extras/CUPTI/include/cublas_v2.h; readlink /usr/local/cuda"
    )
    output = scene.docker("run", "--rm", "--entrypoint", "sh", THEIRS, "-c", script)

    assert output.splitlines() == [
        "release 12.1.1",
        "#define CUDA_VERSION 12010",
        "\x7fELF stub#define CUBLAS 12",
        "cuda-12.1",
    ]


def test_an_image_of_untrusted_archives_has_a_mark(scene: Scene, devel: Path) -> None:
    labels = json.loads(scene.docker("image", "inspect", "--format", "{{json .Config.Labels}}", THEIRS))

    assert "rules.untrusted-toolkit" in labels["torchkiln.limits"]
    assert labels["torchkiln.untrusted"] == "true"
    result = kiln(scene, devel, "build", "--json")
    assert json.loads(result.stdout)["untrusted"] is True
    assert "torchkiln: warning: the lock uses an untrusted source" in result.stderr
    assert kiln(scene, devel, "build", "--locked").returncode == 6


def test_the_sbom_names_the_archives(scene: Scene, devel: Path) -> None:
    """`sbom` reads lock and image. If the image states another hash of an archive, `sbom` reports it."""
    place = ("--output", str(scene.images.parent / "dist"))
    ran = scene.command("sbom", DEVEL, "--images", str(scene.images), *place)
    assert ran.returncode == 0, ran.stderr
    (nvcc,) = (package for package in json.loads(ran.stdout)["components"] if package["name"] == "cuda_nvcc")
    (locked,) = (
        archive for archive in load_locked(scene.images, DEVEL).archives if archive.component == nvcc["name"]
    )
    assert (nvcc["version"], nvcc["hashes"][0]["content"]) == (locked.version, locked.sha256)

    document = devel / "sbom.json"
    document.write_text(ran.stdout)
    assert scene.command("sbom", DEVEL, "--check", str(document), *place).returncode == 0
    document.write_text(ran.stdout.replace(locked.sha256, "0" * 64))
    wrong = scene.command("sbom", DEVEL, "--check", str(document), *place)
    assert wrong.returncode == 12
    assert "archive cuda_nvcc" in wrong.stderr
