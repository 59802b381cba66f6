"""A small cell that can be built: generated wheels, a base of one file, the host's Python as the image's."""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from tests.planned import LOCK_DIGEST, locked
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.build import image as image_build
from torchkiln.build import wheel_layers
from torchkiln.build.environment import Environment
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer
from torchkiln.model.layer_format import LayerFormat
from torchkiln.model.lock import LockedBase
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
    """Stands for `base.interpreter.Interpreter`."""

    def argv(self) -> list[str]:
        """The command that starts it."""
        return [sys.executable]


def noise(name: str, size: int) -> bytes:
    """Bytes that hang on *name* and do not deflate."""
    return hashlib.shake_128(name.encode()).digest(size)


def base_of(salt: str = "") -> tuple[bytes, bytes]:
    """The base, as a tar and as a blob: a name, which hangs on *salt*, and the lock's one package."""
    contents = {"etc/os-release": f"ID=none{salt}\n", "var/lib/dpkg/status": _STATUS}
    files = [OverlayFile(path=path, mode=0o644, data=text.encode()) for path, text in contents.items()]
    unpacked = tar.archive(files, mtime=0)
    return unpacked, gzip.compress(unpacked, mtime=0)


def small_wheels(folder: Path, version: str = "", salt: str = "") -> list[Path]:
    """Two that get layers of their own (see `planned_cell`), three that share one.

    :param version: changes one of them.
    :param salt: changes all.
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
    """The plan of a lock of *wheels* in which 100 kB make a wheel big."""
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
    """The base of `planned_cell` in *store*."""
    if not store.has_blob(base.digest, base.size):
        temporary = store.temporary("base")
        temporary.write_bytes(base_of(salt)[1])
        store.adopt(temporary, store.blob(base.digest))


def build(
    cell: ImagePlan, cache: Path, layout: Path, fetcher: Fetcher, *, layer_format: LayerFormat = "gzip"
) -> image_build.BuildResult:
    """Build *cell* with the base in *cache* and the host's Python."""
    store = Store(cache)
    put_base(cell.locked.base, store)
    with patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython()):
        environment = Environment(store=store, fetcher=fetcher, observer=Silent())
        return image_build.build(cell, layout, environment, layer_format=layer_format)
