"""Two images of one small cell: one with the base's Python, one with another CPython of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

from tests.cells import HostPython, noise
from tests.planned import FACTS, locked
from tests.pool_worker import in_this_process
from tests.python_builds import another_python, matrix_with, minor_of, real_archive
from tests.roots import entry, tar_of
from tests.stored import put_tar
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.base import confined
from torchkiln.base.interpreter import LIBRARIES, LOADER
from torchkiln.engine import wheel_layers
from torchkiln.engine.build import BuildOptions
from torchkiln.engine.build import build as build_locked
from torchkiln.engine.environment import Environment
from torchkiln.engine.standalone import StandalonePythons
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import PythonArchive
from torchkiln.model.layer import BuiltImage
from torchkiln.model.lock import LockedBase, LockedCell, LockedStandalone
from torchkiln.model.progress import Silent
from torchkiln.oci.tar import parents
from torchkiln.oci.unpack import LayerBlob
from torchkiln.oci.validate.validate import validate
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
# The C library, and libraries that modules of the standard library need.
LIBRARIES_OF_BASE = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libz.so.1", "libcrypto.so.3")


def base_tar() -> bytes:
    """A base with the host's C library, a venv like Debian's base, and an empty script as its Python."""
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
    """Write that base to *store*; returns its lock."""
    return replace(locked().base, python=HOST, **asdict(put_tar(base_tar(), store)))


def pythons(store: Store, path: Path) -> StandalonePythons:
    return StandalonePythons(store=store, environ={}, locate=lambda _: str(path))


Build = tuple[Path, PythonArchive, str]
"""An archive of a CPython, its lock, and its version, "3.12"."""

Made = tuple[Store, LockedBase, LockedStandalone]
"""A store with the base and the layer of that Python."""


def real_build(folder: Path) -> Build:
    """An archive of a CPython with another minor version than the host's."""
    python = another_python(OWN)
    return *real_archive(python, folder), minor_of(python)


def made_of(build: Build, cache: Path) -> Made:
    """A new store with the base and the layer of the Python of *build*."""
    store = Store(cache)
    base = put_base(store)
    path, archive, python = build
    return store, base, pythons(store, path).make(archive, python, base)


def small_wheels(folder: Path) -> list[Path]:
    """Wheels of torch, of a library of NVIDIA and of another package; each gets a layer."""
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
        for name, module in (("torch", "torch"), ("nvidia_cublas_cu12", "nvidia/cublas"), ("six", "six"))
    ]


@contextmanager
def small_build() -> Iterator[None]:
    """Within this context, wheels of 100 kB or more get a layer each, and the host's Python is the base's."""

    def interpreter(
        base: LockedBase, there: Store, standalone: LockedStandalone | None = None
    ) -> HostPython | confined.ConfinedPython:
        return confined.interpreter(base, there, standalone) if standalone else HostPython()

    with (
        patch("torchkiln.plan.layers.BIG_WHEEL", 100_000),
        patch.object(wheel_layers, "interpreter", interpreter),
        in_this_process(),
    ):
        yield


@dataclass(frozen=True, kw_only=True)
class Images:
    """Two images of one cell in a layout: `own` with the base's Python, `other` with a standalone Python."""

    own: BuiltImage
    other: BuiltImage
    cell: LockedCell  # of `other`
    grid: Matrix
    wheels: list[Path]
    layout: Path
    store: Store

    @property
    def layers(self) -> list[LayerBlob]:
        """The layers of `other`."""
        blobs = (layer.blob for layer in self.other.layers)
        return [LayerBlob(path=self.store.blob(blob.digest), diff_id=blob.diff_id) for blob in blobs]


def images_in(folder: Path, build: Build, made: Made) -> Images:
    """Both images, built from one set of wheels."""
    _, archive, python = build
    store, base, standalone = made
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


def python_of_environment(*arguments: str) -> tuple[str, ...]:
    """The command that starts the environment's Python in the unpacked image.

    The command starts the dynamic loader, because this Python does not find its libraries by itself. Real
    standalone builds do.
    """
    libraries = f"/{LIBRARIES}:/opt/python/lib"
    return (f"/{LOADER}", "--library-path", libraries, "/opt/venv/bin/python3", "-B", *arguments)


def started(root: Path, code: str) -> tuple[str, ...]:
    """The command that runs *code* with the environment's Python in the unpacked image *root*."""
    return (*sandbox.command(root, {"LC_ALL": "C"}), *python_of_environment("-c", code))
