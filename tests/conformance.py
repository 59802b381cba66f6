"""A small image with all kinds of files that are difficult to unpack, and the file tree that it must have."""

from __future__ import annotations

import contextlib
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from tests.cells import CODE, HostPython, build, noise, planned_cell
from tests.oci_samples import EPOCH, Member, tar_of
from tests.readers import Image
from tests.trees import Thing, Tree, file, folders_of
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.engine import worker
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, BuiltImage
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.oci.archive import write_archive
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layer import LayerWriter
from torchkiln.oci.layout import open_layout

SITE = f"opt/venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
WHEELS_MTIME = 315532800
NAME = "conformance:own"

BASE = (
    Member(name="etc/"),
    Member(name="etc/os-release", data=b"ID=none\n"),
    Member(name="usr/"),
    Member(name="usr/bin/"),
    Member(name="usr/bin/tool", data=b"#!/bin/sh\n", mode=0o755),
    Member(name="usr/bin/alias", link="tool"),
    Member(name="usr/bin/twin", link="usr/bin/tool", kind=tarfile.LNKTYPE, mode=0o755),
    Member(name="usr/lib/"),
    Member(name="usr/lib/far", link="../../" + "n" * 140 + "/nowhere"),
    Member(
        name="usr/lib/big", data=noise("base", 300_000) * 30, mode=0o600
    ),  # so large that torchkiln's encoder writes three gzip members
)

_LONG = "/".join((("l" * 90), ("o" * 90), ("n" * 90), "g" * 27))  # 300 characters
_HARD = (
    File(path="torch/__init__.py", data=CODE),
    File(path="torch/stored.bin", data=noise("stored", 200_000), stored=True),
    File(path="torch/stored.small", data=b"as it is", stored=True),
    File(path="torch/stored.empty", data=b"", stored=True),
    File(path="torch/empty", data=b""),
    File(path="torch/zeros", data=bytes(5_000_000)),
    File(path="torch/lib/big.so", data=noise("big", 1_500_000) * 3, mode=0o755),
    File(path="torch/bin/run.sh", data=b"#!/bin/sh\n", mode=0o755),
    File(path=f"torch/{_LONG}", data=b"far away\n"),
    File(path="torch/Größe 日本 🔥.txt", data="häßlich\n".encode()),
    File(path=f"torch/{'ü' * 90}.txt", data=b"more than a tar header holds\n"),
    *(File(path=f"torch/block{size}", data=noise("block", size)) for size in (511, 512, 513, 65535, 65536)),
)
_MANY = tuple(
    File(path=f"sympy/many/{number:03}.{'py' if number % 3 else 'txt'}", data=b"# %d\n" % number * number)
    for number in range(400)
)
SPECS = (
    WheelSpec(name="torch", files=_HARD, console=(("torchrun", "torch:main"),)),
    WheelSpec(name="triton", files=(File(path="triton/lib.so", data=noise("triton", 150_000), mode=0o755),)),
    WheelSpec(name="sympy", files=_MANY),
    WheelSpec(name="jinja2", files=(File(path="share/man/j.1", data=b"man\n", scheme="data"),)),
)


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """`image` and `built` describe one image, for other programs and for torchkiln; `tree` is its content."""

    image: Image
    built: BuiltImage
    tree: Tree


def make(folder: Path) -> Conformance:
    """Build the image in *folder*."""
    wheels = [write_wheel(spec, folder / "wheels") for spec in SPECS]
    base_tar = tar_of(BASE)
    base_blob, _ = encode_bytes(base_tar)
    with patch("tests.cells.base_of", lambda _salt="": (base_tar, base_blob)):
        cell = planned_cell(wheels)
        built = build(cell, folder / "cache", folder / "layout", FakeIndex(wheels)).image
    tree = {member.name.rstrip("/"): _of_base(member) for member in BASE}
    for spec, layer in zip(cell.layers, built.layers, strict=True):
        tree |= (
            _recorded(spec, cell, wheels, layer.blob.diff_id, folder) if isinstance(spec, WheelLayer) else {}
        )
    for overlaid in cell.overlay.files:
        tree |= folders_of(overlaid.path, cell.epoch)
        tree[overlaid.path] = file(overlaid.data, mode=overlaid.mode, mtime=cell.epoch)
    return Conformance(image=_image(built, folder / "image.tar"), built=built, tree=tree)


def _image(built: BuiltImage, archive: Path) -> Image:
    write_archive(open_layout(Path(built.layout)).image(built.ref), archive, "docker-archive", [NAME])
    return Image(layout=Path(built.layout), ref=built.ref, docker_archive=archive, name=NAME)


def _of_base(member: Member) -> Thing:
    if member.kind == tarfile.LNKTYPE:
        return _of_base(next(other for other in BASE if other.name == member.link))
    if member.link:
        return Thing(kind="link", mode=0o777, mtime=EPOCH, link=member.link)
    if member.name.endswith("/"):
        return Thing(kind="folder", mode=0o755, mtime=EPOCH)
    return file(member.data, mode=member.mode, mtime=EPOCH)


def _recorded(spec: WheelLayer, cell: ImagePlan, wheels: list[Path], diff_id: Digest, folder: Path) -> Tree:
    """The files of the layer *spec*: build it again with a writer that records them; *diff_id* must match."""
    inputs = tuple(
        worker.WheelInput(wheel=locked_wheel(path), path=path)
        for wheel in spec.wheels
        for path in wheels
        if path.name == wheel.filename
    )
    job = worker.Task(
        slot=0,
        inputs=inputs,
        cache=folder / "again",
        python=cell.locked.python,
        interpreter=tuple(HostPython().argv()),
        out=folder / "again.tar.gz",
    )
    _RecordingWriter.recorded_tree = {}
    with (
        patch.object(worker, "LayerWriter", _RecordingWriter),
        patch.object(worker, "_cancelled", threading.Event(), create=True),
        patch.object(worker, "_progress", [0], create=True),
    ):
        written: Blob = worker.make_layer(job)
    assert written.diff_id == diff_id
    return _RecordingWriter.recorded_tree


class _RecordingWriter(LayerWriter):
    """A writer that also records the files that it gets."""

    recorded_tree: ClassVar[Tree] = {}

    def file(self, path: str, mode: int, data: bytes) -> None:
        super().file(path, mode, data)
        self._record(path, mode, data)

    @contextlib.contextmanager
    def entry(self, path: str, mode: int, *, size: int, crc: int) -> Iterator[Any]:
        content = bytearray()
        with super().entry(path, mode, size=size, crc=crc) as member:
            yield _RecordingMember(member, content)
        self._record(path, mode, bytes(content))

    def _record(self, path: str, mode: int, data: bytes) -> None:
        self.recorded_tree.update(folders_of(path, WHEELS_MTIME))
        self.recorded_tree[path] = file(data, mode=mode, mtime=WHEELS_MTIME)


class _RecordingMember:
    def __init__(self, member: Any, content: bytearray) -> None:
        self._member, self._content = member, content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def plain(self, content: bytes) -> None:
        self._content += content
        self._member.plain(content)

    def spliced(self, deflate: bytes, content: bytes) -> None:
        self._content += content
        self._member.spliced(deflate, content)


def of_the_wheels() -> Tree:
    """The files that the wheels install into site-packages, from the wheels' specifications."""
    return {
        f"{SITE}/{own.path}": file(own.data, mode=own.mode, mtime=WHEELS_MTIME)
        for spec in SPECS
        for own in spec.files
        if not own.scheme
    }
