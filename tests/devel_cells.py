"""A small devel cell: that of tests/cells.py, with the small toolkit of tests/standin/cuda_archives.py."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from tests.cells import planned_cell
from tests.gridcase import FACTS, MATRIX
from tests.planned import LOCK_DIGEST
from torchkiln.matrix.cuda_redist import Redist
from torchkiln.matrix.os_tools import TOOLS
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedTools, OsPackage
from torchkiln.model.plan import ImagePlan, OverlayFile
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.plan.plan import plan
from torchkiln.store.store import Store

RELEASE = "12.1.1"
HOME = "usr/local/cuda-12.1"


def resolution(
    archives: Iterable[LockedArchive], torch: str = "2.7.1", cuda: str = "12.1", release: str = RELEASE
) -> Resolution:
    """The devel cell's answer where NVIDIA's release has *archives*, which are untrusted."""
    redist = Redist(releases={release: tuple(archives)}, untrusted=True)
    cell = Cell(torch=torch, cuda=cuda, flavor="devel", os="debian12", python="3.11")
    return resolve(cell, MATRIX, replace(FACTS, redist=redist))


def small_tools(base: LockedBase, store: Store) -> LockedTools:
    """Tools in *store*, on *base* there, which are so by dpkg's account alone."""
    path = "var/lib/dpkg/status"
    with tarfile.open(store.blob(base.digest)) as opened:
        content = opened.extractfile(f"./{path}")
        assert content is not None
        status = content.read().decode()
    there = {package.name for package in base.packages}
    named = tuple(OsPackage(name=name, version="1") for name in sorted(TOOLS) if name not in there)
    said = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
    more = "\n".join(said.format(package.name) for package in named)
    file = OverlayFile(path=path, mode=0o644, data=f"{status.rstrip()}\n\n{more}".encode())
    blob, encoded = encode_bytes(tar.archive([file], mtime=0))
    store.blob(encoded.digest).write_bytes(blob)
    return LockedTools(
        os=base.os, name="devel", base=base.digest, encoder=base.encoder, packages=named, **asdict(encoded)
    )


def with_toolkit(cell: LockedCell, archives: tuple[LockedArchive, ...]) -> LockedCell:
    """*cell* as devel, with *archives*."""
    torch = cell.resolution.cell.torch
    return replace(cell, resolution=resolution(archives, torch), archives=archives, layers=())


def planned_devel(wheels: Iterable[Path], archives: tuple[LockedArchive, ...]) -> ImagePlan:
    """The plan of that cell with *wheels*."""
    small = planned_cell(wheels)
    whole = plan(with_toolkit(small.locked, archives), (), aliases=(), lock_digest=LOCK_DIGEST)
    wheel_layers = [layer for layer in small.layers if layer.kind == "wheels"]  # those of small "big" wheels
    rest = [layer for layer in whole.layers if layer.kind not in ("base", "wheels")]
    return replace(whole, layers=(small.layers[0], *wheel_layers, *rest))
