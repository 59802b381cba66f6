"""Small cells that can be built: generated wheels, a tiny base, a small toolkit, the host's Python."""

from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

from tests.planned import FACTS, LOCK_DIGEST, MATRIX, locked
from tests.stored import put, put_tar
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.engine import image as image_build
from torchkiln.engine import wheel_layers
from torchkiln.engine.environment import Environment
from torchkiln.matrix.cuda_redist import Redist
from torchkiln.matrix.os_tools import TOOLS
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer, LayerFormat
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedTools, OsPackage
from torchkiln.model.plan import ImagePlan, OverlayFile
from torchkiln.model.progress import Fetcher, Silent
from torchkiln.oci import tar
from torchkiln.plan.plan import plan
from torchkiln.store.store import Store

_STATUS = """\
Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1
"""
CODE = b"def main():\n    return 0\n"


@dataclass(frozen=True)
class HostPython:
    """Used in place of `base.interpreter.Interpreter`: the Python that runs the tests."""

    def argv(self) -> list[str]:
        """The command that starts the host's Python."""
        return [sys.executable]


def noise(name: str, size: int) -> bytes:
    """Incompressible bytes that depend on *name*."""
    return hashlib.shake_128(name.encode()).digest(size)


def base_of(salt: str = "") -> tuple[bytes, bytes]:
    """The base, as a tar and as a blob: its os-release depends on *salt*, its dpkg status has one package."""
    contents = {"etc/os-release": f"ID=none{salt}\n", "var/lib/dpkg/status": _STATUS}
    files = [OverlayFile(path=path, mode=0o644, data=text.encode()) for path, text in contents.items()]
    unpacked = tar.archive(files, mtime=0)
    return unpacked, gzip.compress(unpacked, mtime=0)


def small_wheels(folder: Path, version: str = "", salt: str = "") -> list[Path]:
    """Two wheels that get a layer each (see `planned_cell`), three that share a layer.

    :param version: changes one wheel.
    :param salt: changes all wheels.
    """
    specs = [
        WheelSpec(
            name=name,
            files=(
                File(
                    path=f"{name}/__init__.py",
                    data=CODE + f"# {name}{version if name == 'sympy' else ''}\n".encode(),
                ),
                File(path=f"{name}/lib.so", data=noise(name + salt, size), mode=0o755),
            ),
            console=((name, f"{name}:main"),),
        )
        for name, size in {
            "torch": 300_000,
            "triton": 150_000,
            "jinja2": 900,
            "networkx": 700,
            "sympy": 500,
        }.items()
    ]
    return [write_wheel(spec, folder) for spec in specs]


def planned_cell(wheels: Iterable[Path], layers: tuple[ImageLayer, ...] = (), *, salt: str = "") -> ImagePlan:
    """The plan of a small cell with *wheels*; each wheel of 100 kB or more gets its own layer."""
    cell = locked()
    unpacked, packed = base_of(salt)
    base = replace(
        cell.base,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}",
        digest=Digest(f"sha256:{hashlib.sha256(packed).hexdigest()}"),
        diff_id=Digest(f"sha256:{hashlib.sha256(unpacked).hexdigest()}"),
        size=len(packed),
        unpacked=len(unpacked),
    )
    named = tuple(sorted((locked_wheel(wheel) for wheel in wheels), key=lambda wheel: wheel.name))
    with patch("torchkiln.plan.layers.BIG_WHEEL", 100_000):
        return plan(
            replace(cell, wheels=named, base=base, layers=layers), (), aliases=(), lock_digest=LOCK_DIGEST
        )


def put_base(base: LockedBase, store: Store, salt: str = "") -> None:
    """Put the base of `planned_cell` into *store*."""
    if not store.has_blob(base.digest, base.size):
        put(base_of(salt)[1], store.blob(base.digest), store)


def build(
    cell: ImagePlan, cache: Path, layout: Path, fetcher: Fetcher, *, layer_format: LayerFormat = "gzip"
) -> image_build.BuildResult:
    """Build *cell* with the base in *cache* and the host's Python."""
    store = Store(cache)
    put_base(cell.locked.base, store)
    with patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython()):
        environment = Environment(store=store, fetcher=fetcher, observer=Silent())
        return image_build.build(cell, layout, environment, layer_format=layer_format)


# --- devel -----------------------------------------------------------------------------------------


RELEASE = "12.1.1"
HOME = "usr/local/cuda-12.1"


def resolution(
    archives: Iterable[LockedArchive], torch: str = "2.7.1", cuda: str = "12.1", release: str = RELEASE
) -> Resolution:
    """The resolution of a devel cell. *archives* are NVIDIA's CUDA release, from an untrusted source."""
    redist = Redist(releases={release: tuple(archives)}, untrusted=True)
    cell = Cell(torch=torch, cuda=cuda, flavor="devel", os="debian12", python="3.11")
    return resolve(cell, MATRIX, replace(FACTS, redist=redist))


def small_tools(base: LockedBase, store: Store) -> LockedTools:
    """The lock entry of devel tools; writes their layer to *store*.

    The layer only changes dpkg's status file: it lists the packages, but none of their files exists.
    """
    path = "var/lib/dpkg/status"
    with tarfile.open(store.blob(base.digest)) as opened:
        content = opened.extractfile(f"./{path}")
        assert content is not None
        status = content.read().decode()
    there = {package.name for package in base.packages}
    named = tuple(OsPackage(name=name, version="1") for name in sorted(TOOLS) if name not in there)
    stanza = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
    more = "\n".join(stanza.format(package.name) for package in named)
    file = OverlayFile(path=path, mode=0o644, data=f"{status.rstrip()}\n\n{more}".encode())
    encoded = put_tar(tar.archive([file], mtime=0), store)
    return LockedTools(
        os=base.os, name="devel", base=base.digest, encoder=base.encoder, packages=named, **asdict(encoded)
    )


def with_toolkit(cell: LockedCell, archives: tuple[LockedArchive, ...]) -> LockedCell:
    """*cell* with the flavor devel and with *archives*."""
    torch = cell.resolution.cell.torch
    return replace(cell, resolution=resolution(archives, torch), archives=archives, layers=())


def planned_devel(wheels: Iterable[Path], archives: tuple[LockedArchive, ...]) -> ImagePlan:
    """The plan of a small devel cell with *wheels* and *archives*."""
    small = planned_cell(wheels)
    full_plan = plan(with_toolkit(small.locked, archives), (), aliases=(), lock_digest=LOCK_DIGEST)
    wheel_layers = [layer for layer in small.layers if layer.kind == "wheels"]
    rest = [layer for layer in full_plan.layers if layer.kind not in ("base", "wheels")]
    return replace(full_plan, layers=(small.layers[0], *wheel_layers, *rest))
