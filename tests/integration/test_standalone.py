"""A real CPython on a base with another one: its layer, an image of small wheels, and what runs in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cells import HostPython, noise
from tests.layers import tree_of_layer
from tests.needs import needs_namespaces
from tests.planned import FACTS, locked
from tests.python_builds import another_python, archive_in, matrix_with, minor_of, real_archive
from tests.roots import entry, tar_of
from tests.servers.cuda_archives import mirror, serve
from tests.servers.index_server import IndexServer
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.base.interpreter import LIBRARIES, LOADER
from torchkiln.build import confined, wheel_layers
from torchkiln.build.build import BuildOptions
from torchkiln.build.build import build as build_locked
from torchkiln.build.environment import Environment
from torchkiln.build.standalone import StandalonePythons
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import PythonArchive
from torchkiln.model.digest import Digest
from torchkiln.model.image import BuiltImage
from torchkiln.model.lock import LockedBase, LockedCell, LockedStandalone
from torchkiln.model.progress import Silent
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layout import Layout
from torchkiln.oci.tar import parents
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.oci.validate.validate import validate
from torchkiln.publish.rebuild import RebuildContext, rebuild
from torchkiln.runtimes import sandbox
from torchkiln.store.store import Store

HOST = ".".join(map(str, sys.version_info[:3]))
OWN = ".".join(map(str, sys.version_info[:2]))
STATUS = f"""\
Package: python{OWN}-minimal
Status: install ok installed
Architecture: amd64
Version: {HOST}-1
"""
SITE = f"opt/venv/lib/python{OWN}/site-packages"
# Of the C library, and those that modules of the standard library need.
LIBRARIES_OF_BASE = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libz.so.1", "libcrypto.so.3")
pytestmark = needs_namespaces


def base_tar() -> bytes:
    """A base: the host's C library, a venv as Debian's base has it, and a Python that does not run."""
    host = Path("/") / LIBRARIES
    found = [name for name in LIBRARIES_OF_BASE if (host / name).exists()]
    name = f"python{OWN}"
    entries = [
        entry("var/lib/dpkg/status", STATUS.encode(), mode=0o644),
        entry(f"usr/bin/{name}", b"#!/bin/sh\n"),
        entry(f"usr/lib/{name}/os.py", b""),
        entry(LOADER, (Path("/") / LOADER).resolve().read_bytes()),
        *(entry(f"{LIBRARIES}/{library}", (host / library).resolve().read_bytes()) for library in found),
        entry("opt/venv/bin/python3", kind=b"2", to=f"/usr/bin/{name}"),
        entry(f"opt/venv/bin/{name}", kind=b"2", to="python3"),
        entry("opt/venv/pyvenv.cfg", b"home = /usr/bin\n", mode=0o644),
        entry(f"{SITE}/x", b""),
    ]
    folders = {folder for info, _ in entries for folder in parents(info.name)}
    return tar_of([*(entry(f"{folder}/", kind=b"5") for folder in sorted(folders)), *entries])


def put_base(store: Store) -> LockedBase:
    """The lock of that base, whose blob is in *store*."""
    blob, encoded = encode_bytes(base_tar())
    temporary = store.temporary("base")
    temporary.write_bytes(blob)
    store.adopt(temporary, store.blob(encoded.digest))
    return replace(locked().base, python=HOST, **asdict(encoded))


def pythons(store: Store, path: Path) -> StandalonePythons:
    return StandalonePythons(store=store, environ={}, locate=lambda _: str(path))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PythonArchive, str]:
    """The archive of another CPython, and its version, "3.12"."""
    python = another_python(OWN)
    return *real_archive(python, tmp_path_factory.mktemp("python")), minor_of(python)


@pytest.fixture(scope="module")
def made(
    build: tuple[Path, PythonArchive, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, LockedBase, LockedStandalone]:
    """A store with the base and the layer of that Python."""
    store = Store(tmp_path_factory.mktemp("cache"))
    base = put_base(store)
    path, archive, python = build
    return store, base, pythons(store, path).make(archive, python, base)


def small_wheels(folder: Path) -> list[Path]:
    """torch, and a library of NVIDIA, each with a layer of its own."""
    code = b"def answer():\n    return 42\n"
    return [
        write_wheel(
            WheelSpec(
                name=name,
                files=(
                    File(path=f"{module}/__init__.py", data=code),
                    File(path=f"{module}/tests/test_x.py", data=code),
                    File(path=f"{module}/lib.so", data=noise(name, 200_000), mode=0o755),
                ),
            ),
            folder,
        )
        for name, module in (("torch", "torch"), ("nvidia_cublas_cu12", "nvidia/cublas"))
    ]


@contextmanager
def small_build() -> Iterator[None]:
    """Small wheels have layers of their own, and the base's Python is the host's."""

    def interpreter(
        base: LockedBase, there: Store, standalone: LockedStandalone | None = None
    ) -> HostPython | confined.ConfinedPython:
        return confined.interpreter(base, there, standalone) if standalone else HostPython()

    with (
        patch("torchkiln.plan.layers.BIG_WHEEL", 100_000),
        patch.object(wheel_layers, "interpreter", interpreter),
    ):
        yield


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of one cell with the base's Python and with the other, in a layout."""

    own: BuiltImage
    other: BuiltImage
    cell: LockedCell  # of the latter
    grid: Matrix
    wheels: list[Path]
    layout: Path
    store: Store

    @property
    def layers(self) -> list[LayerBlob]:
        """Those of the other."""
        blobs = (layer.blob for layer in self.other.layers)
        return [LayerBlob(path=self.store.blob(blob.digest), diff_id=blob.diff_id) for blob in blobs]


@pytest.fixture(scope="module")
def images(
    build: tuple[Path, PythonArchive, str],
    made: tuple[Store, LockedBase, LockedStandalone],
    tmp_path_factory: pytest.TempPathFactory,
) -> Images:
    """Built from one set of wheels."""
    _, archive, python = build
    store, base, standalone = made
    folder = tmp_path_factory.mktemp("images")
    wheels, layout = small_wheels(folder), folder / "layout"
    named = tuple(sorted((locked_wheel(wheel) for wheel in wheels), key=lambda wheel: wheel.name))
    grid = matrix_with(archive.filename, archive.sha256, FACTS, python)
    (cell,) = select(Selection(python=(python,)), grid)
    own = replace(locked(), wheels=named, base=base)
    other = replace(own, resolution=resolve(cell, grid, FACTS), standalone=standalone)
    environment = Environment(store=store, fetcher=FakeIndex(wheels), observer=Silent())
    with small_build():
        first, second = (
            build_locked(each, grid, FACTS, layout, environment, options=BuildOptions()).image
            for each in (own, other)
        )
    assert validate(layout) == ()
    return Images(own=first, other=second, cell=other, grid=grid, wheels=wheels, layout=layout, store=store)


def test_the_same_archive_gives_the_same_layer(
    build: tuple[Path, PythonArchive, str],
    made: tuple[Store, LockedBase, LockedStandalone],
    tmp_path: Path,
) -> None:
    """In another cache; in the same one without the archive. Byte-code is for its Python, by its Python."""
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
    asked = subprocess.run(
        [
            another_python(OWN) / f"bin/python{python}",
            "-c",
            "import importlib.util as u; print(u.MAGIC_NUMBER.hex())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert code[:4].hex() == asked.stdout.strip()
    assert code[4:8] == b"\1\0\0\0"  # hash-based: independent of times
    assert standalone.version == another_python(OWN).name


def test_nvidias_layer_is_the_same_and_the_others_differ(
    images: Images,
) -> None:
    own, other = ({layer.title: layer.blob for layer in image.layers} for image in (images.own, images.other))
    titles = list(other)

    assert titles[1] == "nvidia-cublas-cu12 1.0"
    assert titles[2].startswith("CPython 3.")
    assert own[titles[1]] == other[titles[1]]
    assert own[titles[0]] == other[titles[0]]
    assert own["torch 1.0"] != other["torch 1.0"]
    assert own["torch 1.0"].size > other["torch 1.0"].size


def test_packages_are_in_one_folder_with_byte_code_of_their_python(
    build: tuple[Path, PythonArchive, str], images: Images
) -> None:
    """Of tests none, in the layers of the other Python."""
    own, tag = OWN.replace(".", ""), build[2].replace(".", "")
    nvidia, torch = (tree_of_layer(images.layers[number].path.read_bytes()) for number in (1, 3))

    assert f"{SITE}/nvidia/cublas/__pycache__/__init__.cpython-{own}.pyc" in nvidia
    assert f"{SITE}/nvidia/cublas/tests/__pycache__/test_x.cpython-{own}.pyc" in nvidia
    assert f"{SITE}/torch/__pycache__/__init__.cpython-{tag}.pyc" in torch
    assert not [path for path in torch if "tests/__pycache__" in path or f"python{build[2]}" in path]


def test_the_python_runs_in_the_image(
    build: tuple[Path, PythonArchive, str],
    made: tuple[Store, LockedBase, LockedStandalone],
    images: Images,
    tmp_path: Path,
) -> None:
    """By its links in /opt/venv; it finds all packages, and the base's link to its own Python is gone."""
    root = tmp_path / "root"
    unpack(images.layers, root)
    code = (
        "import sys, sysconfig, torch, nvidia.cublas;"
        "print(sys.version.split()[0], sys.prefix, sys.base_prefix, sysconfig.get_path('purelib'),"
        " torch.answer() + nvidia.cublas.answer(), torch.__cached__)"
    )
    python, tag = build[2], build[2].replace(".", "")
    libraries = f"/{LIBRARIES}:/opt/python/lib"
    argv = [f"/{LOADER}", "--library-path", libraries, "/opt/venv/bin/python3", "-B", "-c", code]
    ran = subprocess.run(
        [*sandbox.command(root, {"LC_ALL": "C"}), *argv], capture_output=True, text=True, check=False
    )

    site = f"/opt/venv/lib/python{python}/site-packages"
    cached = f"{site}/torch/__pycache__/__init__.cpython-{tag}.pyc"
    assert ran.stderr == ""
    assert ran.stdout.split() == [made[2].version, "/opt/venv", "/opt/python", site, "84", cached]
    assert not (root / f"opt/venv/bin/python{OWN}").is_symlink()
    assert (root / f"opt/venv/lib/python{python}").readlink() == Path(f"python{OWN}")


class Reading:
    """Replaces the reader of a repository: the blobs of a layout."""

    def __init__(self, layout: Path) -> None:
        self.blobs = layout / "blobs" / "sha256"
        self.fetched: list[str] = []

    def fetch(self, digest: str, _size: int, path: Path, _on_progress: object) -> None:
        self.fetched.append(digest)
        shutil.copyfile(self.blobs / digest.removeprefix("sha256:"), path)


def test_the_image_is_rebuilt_from_its_lock_and_its_own_layers(images: Images, tmp_path: Path) -> None:
    """Base and Python are those of the image; the archive is not needed."""
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
        lacking = replace(image, layers=(image.layers[0], *image.layers[3:]))
        without = rebuild(reading, lacking, images.cell, context)  # type: ignore[arg-type]

    assert (point.good, point.text) == (True, f"rebuilt from its lock: {images.other.manifest}")
    assert images.cell.standalone
    assert reading.fetched[:2] == [images.cell.base.digest, images.cell.standalone.digest]
    assert without.text == f"no layer is {images.cell.standalone.diff_id[:19]}, the Python in the lock"


def test_a_wrong_archive_is_refused_before_the_base_is_needed(tmp_path: Path) -> None:
    """No such file; another file; another Python; nothing is stored."""
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
    """It has the head of a program only."""
    store = Store(tmp_path / "cache")
    path, archive = archive_in(tmp_path)
    with pytest.raises(BuildFailed, match="its Python does not run on debian12: "):
        pythons(store, path).make(archive, "3.12", put_base(store))


def test_the_layer_of_a_lock_comes_from_the_cache_a_file_or_the_archive(
    build: tuple[Path, PythonArchive, str],
    made: tuple[Store, LockedBase, LockedStandalone],
    tmp_path: Path,
) -> None:
    """Another file or another layer of the archive is refused."""
    first, base, standalone = made
    pythons(first, tmp_path / "gone").ensure(standalone, base)

    store = Store(tmp_path / "cache")
    own = put_base(store)
    copy = tmp_path / "layer"
    copy.write_bytes(first.blob(standalone.digest).read_bytes() + b"x")
    with pytest.raises(BuildFailed, match="differs from the lock: expected sha256:"):
        pythons(store, tmp_path / "gone").ensure(standalone, own, file=copy)
    copy.write_bytes(first.blob(standalone.digest).read_bytes())
    pythons(store, tmp_path / "gone").ensure(standalone, own, file=copy)
    assert store.has_blob(standalone.digest, standalone.size)

    changed = replace(standalone, digest=Digest("sha256:" + "9" * 64))
    with pytest.raises(BuildFailed, match=f"expected {changed.digest}, got {standalone.digest}"):
        pythons(first, build[0]).ensure(changed, base)


def test_the_archive_is_downloaded_from_a_url(
    build: tuple[Path, PythonArchive, str],
    made: tuple[Store, LockedBase, LockedStandalone],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
        monkeypatch.setattr("torchkiln.index.python_builds._MOST", 1 << 20)
        with pytest.raises(BuildFailed, match=r"too large for an archive of a Python: .* bytes, limit 1 MiB"):
            make(archive.filename, tmp_path / "large")
        with pytest.raises(BuildFailed, match="404"):
            make("gone.tar.gz", tmp_path / "gone")
