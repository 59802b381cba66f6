"""A real standalone CPython on a base with another Python: its layer, and a small image that runs it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.layers import tree_of_layer
from tests.needs import needs_namespaces
from tests.planned import FACTS, locked
from tests.programs import run_program
from tests.python_builds import another_python, archive_in
from tests.servers.cuda_archives import mirror, serve
from tests.servers.index_server import IndexServer
from tests.smoke_suites import SUITE
from tests.standalone_scene import (
    OWN,
    SITE,
    Build,
    Images,
    Made,
    images_in,
    made_of,
    put_base,
    python_of_environment,
    pythons,
    real_build,
    small_build,
    started,
)
from tests.unpublished import FakeIndex
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedStandalone
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import Layout
from torchkiln.oci.unpack import unpack
from torchkiln.projects.sources.workshop import Limits, run_enclosed
from torchkiln.publishing.rebuild import RebuildContext, rebuild
from torchkiln.runtimes.command import Program
from torchkiln.store.store import Store

pytestmark = needs_namespaces


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return real_build(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def made(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_of(build, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def images(build: Build, made: Made, tmp_path_factory: pytest.TempPathFactory) -> Images:
    return images_in(tmp_path_factory.mktemp("images"), build, made)


def test_the_same_archive_gives_the_same_layer(build: Build, made: Made, tmp_path: Path) -> None:
    """The layer is the same with another cache, or without the archive. The new Python compiles it."""
    path, archive, python = build
    store, base, standalone = made
    other = Store(tmp_path / "cache")
    assert pythons(other, path).make(archive, python, put_base(other)) == standalone
    assert pythons(store, tmp_path / "gone").make(archive, python, base) == standalone
    renamed = replace(archive, filename="copy.tar.gz")
    again = pythons(store, tmp_path / "gone").make(renamed, python, base)
    assert again == replace(standalone, filename="copy.tar.gz")

    tree = tree_of_layer(store.blob(standalone.digest).read_bytes())
    tag = python.replace(".", "")
    code = tree[f"opt/python/lib/python{python}/__pycache__/os.cpython-{tag}.pyc"].data
    asked = run_program(
        [
            another_python(OWN) / f"bin/python{python}",
            "-c",
            "import importlib.util as u; print(u.MAGIC_NUMBER.hex())",
        ],
        check=True,
    )
    assert code[:4].hex() == asked.stdout.strip()
    assert code[4:8] == b"\1\0\0\0"  # a hash-based .pyc, which does not depend on times
    assert standalone.version == another_python(OWN).name


def test_nvidias_layer_is_the_same_and_the_others_differ(images: Images) -> None:
    own, other = ({layer.title: layer.blob for layer in image.layers} for image in (images.own, images.other))
    nvidia, torch, *_, base, python, _ = other

    assert (nvidia, torch) == ("nvidia-cublas-cu12 1.0", "torch 1.0")
    assert python.startswith("CPython 3.")
    assert own[nvidia] == other[nvidia]
    assert own[base] == other[base]
    assert own["torch 1.0"] != other["torch 1.0"]
    assert own["torch 1.0"].size > other["torch 1.0"].size


def test_packages_are_in_one_folder_with_byte_code_of_their_python(build: Build, images: Images) -> None:
    """Layers for the standalone Python have no byte-code of tests."""
    own, tag = OWN.replace(".", ""), build[2].replace(".", "")
    nvidia, torch = (tree_of_layer(images.layers[number].path.read_bytes()) for number in (0, 1))

    assert f"{SITE}/nvidia/cublas/__pycache__/__init__.cpython-{own}.pyc" in nvidia
    assert f"{SITE}/nvidia/cublas/tests/__pycache__/test_x.cpython-{own}.pyc" in nvidia
    assert f"{SITE}/torch/__pycache__/__init__.cpython-{tag}.pyc" in torch
    assert not [path for path in torch if "tests/__pycache__" in path or f"python{build[2]}" in path]


def test_the_python_runs_in_the_image(build: Build, made: Made, images: Images, tmp_path: Path) -> None:
    """The links in /opt/venv lead to this Python, no longer to the base's Python. It finds all packages."""
    root = tmp_path / "root"
    unpack(images.layers, root)
    code = (
        "import sys, sysconfig, torch, nvidia.cublas;"
        "print(sys.version.split()[0], sys.prefix, sys.base_prefix, sysconfig.get_path('purelib'),"
        " torch.answer() + nvidia.cublas.answer(), torch.__cached__)"
    )
    python, tag = build[2], build[2].replace(".", "")
    ran = run_program(started(root, code))

    site = f"/opt/venv/lib/python{python}/site-packages"
    cached = f"{site}/torch/__pycache__/__init__.cpython-{tag}.pyc"
    assert ran.stderr == ""
    assert ran.stdout.split() == [made[2].version, "/opt/venv", "/opt/python", site, "84", cached]
    assert not (root / f"opt/venv/bin/python{OWN}").is_symlink()
    assert (root / f"opt/venv/lib/python{python}").readlink() == Path(f"python{OWN}")


def test_the_smoke_check_of_files_accepts_byte_code_for_the_bases_python_alone(
    images: Images, tmp_path: Path
) -> None:
    """NVIDIA's layer has byte-code of the base's Python. The check finds a changed header or source file."""
    root, probe = tmp_path / "root", (SUITE / "probes/installed.py").read_text()
    unpack(images.layers, root)
    (root / "tmp").mkdir()
    kinds = ("absent", "changed", "unhashed", "stale")

    def seen() -> dict[str, list[str]]:
        program = Program(argv=tuple(python_of_environment("-I", "-c", probe)), env={"LC_ALL": "C"})
        ran = run_enclosed(root, program, Limits())
        assert ran.stderr == b""
        found = json.loads(ran.stdout)
        return {kind: found[kind] for kind in kinds if found[kind]}

    assert seen() == {}
    package = root / SITE / "nvidia/cublas"
    code = package / f"__pycache__/__init__.cpython-{OWN.replace('.', '')}.pyc"
    named, data = str(code.relative_to(root / SITE)), code.read_bytes()
    code.write_bytes(data[:8] + bytes((data[8] ^ 1,)) + data[9:])
    assert seen() == {"stale": [named]}
    code.write_bytes(data)
    (package / "__init__.py").write_text("x = 1\n")
    assert seen() == {"changed": ["nvidia/cublas/__init__.py"], "stale": [named]}


class Reading:
    """Used in place of `Reading`, which reads a repository: its blobs are those of a layout."""

    def __init__(self, layout: Path) -> None:
        self.blobs = layout / "blobs" / "sha256"
        self.fetched: list[str] = []

    def fetch(self, digest: str, _size: int, path: Path, _on_progress: object) -> None:
        self.fetched.append(digest)
        shutil.copyfile(self.blobs / digest.removeprefix("sha256:"), path)


def test_the_image_is_rebuilt_from_its_lock_and_its_own_layers(images: Images, tmp_path: Path) -> None:
    """The rebuild takes base and Python from the image's layers. It does not need the archive."""
    assert images.cell.standalone
    reading, image = Reading(images.layout), Layout(images.layout).image(images.other.tag)
    context = RebuildContext(
        matrix=images.grid,
        facts=FACTS,
        store=Store(tmp_path / "cache"),
        index=lambda _store: FakeIndex(images.wheels),
        observer=Silent(),
    )
    with small_build():
        point = rebuild(reading, image, images.cell, context)  # type: ignore[arg-type]
        others = (layer for layer in image.layers if layer.diff_id != images.cell.standalone.diff_id)
        lacking = replace(image, layers=tuple(others))
        without = rebuild(reading, lacking, images.cell, context)  # type: ignore[arg-type]

    assert (point.good, point.text) == (True, f"rebuilt from its lock: {images.other.manifest}")
    assert reading.fetched[:2] == [images.cell.base.digest, images.cell.standalone.digest]
    assert (
        without.text
        == f"no layer has the diff_id {images.cell.standalone.diff_id[:19]} of the Python in the lock"
    )


def test_a_wrong_archive_is_refused_before_the_base_is_needed(tmp_path: Path) -> None:
    """If the archive is missing, or has a different hash or Python, the build fails and stores nothing."""
    store = Store(tmp_path / "cache")
    base = locked().base  # not in the store
    path, archive = archive_in(tmp_path)

    with pytest.raises(ConfigError, match=r"gone\.tar\.gz: no such file"):
        pythons(store, tmp_path / "gone.tar.gz").make(archive, "3.12", base)
    with pytest.raises(ConfigError, match="no such file"):
        pythons(store, tmp_path).make(archive, "3.12", base)
    with pytest.raises(BuildFailed, match=r"checksum mismatch: sha256 \w{64}, 4{64} in matrix\.yaml"):
        pythons(store, path).make(replace(archive, sha256="4" * 64), "3.12", base)
    with pytest.raises(BuildFailed, match=r"has Python 3\.12, not 3\.13"):
        pythons(store, path).make(archive, "3.13", base)
    with pytest.raises(BuildFailed, match=r"is not in the cache, and matrix\.yaml names no such archive"):
        StandalonePythons(store=store, environ={}, locate=lambda _: "").make(archive, "3.12", base)
    assert not list(store.root.glob("blobs/sha256/*"))
    assert not list(store.root.glob("tmp/*"))


def test_a_python_that_does_not_run_is_refused(tmp_path: Path) -> None:
    """The Python in the archive is only an ELF header, so it cannot run."""
    store = Store(tmp_path / "cache")
    path, archive = archive_in(tmp_path)
    with pytest.raises(BuildFailed, match="its Python does not run on debian12: "):
        pythons(store, path).make(archive, "3.12", put_base(store))


def test_the_layer_of_a_lock_comes_from_the_cache_or_the_archive(
    build: Build, made: Made, tmp_path: Path
) -> None:
    """An archive that gives another layer is refused."""
    first, base, standalone = made
    pythons(first, tmp_path / "gone").ensure(standalone, base)

    changed = replace(standalone, digest=Digest("sha256:" + "9" * 64))
    with pytest.raises(BuildFailed, match=f"expected {changed.digest}, got {standalone.digest}"):
        pythons(first, build[0]).ensure(changed, base)


def test_the_archive_is_downloaded_from_a_url(
    build: Build, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted download is resumed; another file and a missing one are refused."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda _attempt, _wait: 0.0)
    path, archive, python = build
    with IndexServer() as server:
        serve(server, archive.filename, path.read_bytes())
        serve(server, "other.tar.gz", b"another file")

        def make(name: str, cache: Path) -> LockedStandalone:
            store, url = Store(cache), f"{mirror(server)}/{name}"
            remote = StandalonePythons(
                store=store, environ={"PIP_CONFIG_FILE": "/dev/null"}, locate=lambda _: url
            )
            return remote.make(archive, python, put_base(store))

        server.faults.short = [20_000]
        assert make(archive.filename, tmp_path / "cache") == made[2]
        with pytest.raises(BuildFailed, match=r"checksum mismatch: sha256 \w{64}, \w{64} in matrix\.yaml"):
            make("other.tar.gz", tmp_path / "other")
        monkeypatch.setattr("torchkiln.index.download._MOST", 1 << 20)
        with pytest.raises(BuildFailed, match=r"too large for an archive of a Python: .* bytes, limit 1 MiB"):
            make(archive.filename, tmp_path / "large")
        with pytest.raises(BuildFailed, match="404"):
            make("gone.tar.gz", tmp_path / "gone")
