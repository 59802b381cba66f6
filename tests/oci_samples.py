"""Small plans, layers and layouts for the tests of images, made with Python's tarfile and gzip."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchkiln.model.cell import Cell, Resolution, Status
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedBase, LockedCell
from torchkiln.model.plan import Healthcheck, ImageConfig, ImagePlan, OverlayLayer
from torchkiln.oci.layout import Layout, open_layout, write_image
from torchkiln.oci.validate.validate import validate
from torchkiln.util.files import write_atomic

EPOCH = 1_750_000_000
ZERO = Digest("sha256:" + "0" * 64)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One tar member; a name that ends in "/" is a folder, `link` makes a symbolic link."""

    name: str
    data: bytes = b""
    link: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    xattrs: tuple[str, ...] = ()
    kind: bytes = b""


def tar_of(members: Iterable[Member], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """The members as a tar, in their order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name.rstrip("/") if member.name.endswith("/") else member.name)
            info.mode, info.uid, info.mtime, info.size = member.mode, member.uid, EPOCH, len(member.data)
            info.gid = member.gid
            info.pax_headers = {f"SCHILY.xattr.{name}": "x" for name in member.xattrs}
            if member.name.endswith("/"):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif member.link:
                info.type, info.linkname = tarfile.SYMTYPE, member.link
            info.type = member.kind or info.type
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def files(**contents: bytes) -> tuple[Member, ...]:
    """Members by path, `__` for a slash: `files(etc__motd=b"hi")` is etc/motd after its folder."""
    members: dict[str, Member] = {}
    for name, data in contents.items():
        parts = name.split("__")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth]) + "/"
            members.setdefault(folder, Member(name=folder))
        members["/".join(parts)] = Member(name="/".join(parts), data=data)
    return tuple(members.values())


def members_of(tar: bytes, count: int = 1) -> bytes:
    """*tar* as a gzip file of *count* members, like a spliced layer."""
    step = max(1, -(-len(tar) // count))
    parts = [tar[at : at + step] for at in range(0, len(tar), step)] or [b""]
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


def digest(data: bytes) -> Digest:
    """The SHA-256 of *data*, as a digest."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class BlobFolder:
    """A folder of blobs, in place of the store."""

    root: Path

    def path(self, name: Digest) -> Path:
        """The path of a blob; the argument `blob_path` of `write_image`."""
        return self.root / name.removeprefix("sha256:")

    def layer(self, title: str, tar: bytes, *, pack: Callable[[bytes], bytes] = members_of) -> ImageLayer:
        """Write a layer."""
        blob = pack(tar)
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path(digest(blob)), blob)  # several processes may write the same blob
        return ImageLayer(
            title=title,
            blob=Blob(digest=digest(blob), diff_id=digest(tar), size=len(blob), unpacked=len(tar)),
        )


def config(**changes: object) -> ImageConfig:
    """An image config with a value in each field."""
    values: dict[str, object] = {
        "env": (("PATH", "/opt/venv/bin:/usr/bin"), ("LANG", "C.UTF-8")),
        "entrypoint": ("/usr/bin/tini", "--", "/usr/local/bin/entrypoint"),
        "cmd": (),
        "workdir": "/workspace",
        "ports": ("8888/tcp", "22/tcp"),
        "volumes": ("/workspace",),
        "labels": (("org.opencontainers.image.version", "2.7.1"), ("torchkiln.status", "minor-compat")),
        "stop_signal": "SIGTERM",
        "healthcheck": Healthcheck(
            command=("/bin/true",), interval=30, timeout=5, start_period=10, retries=3
        ),
    }
    return ImageConfig(**{**values, **changes})  # type: ignore[arg-type]


def plan(
    tag: str = "2.7.1-cuda12.1-runtime", *, titles: tuple[str, ...] = ("base",), **changes: object
) -> ImagePlan:
    """A plan with *titles* as its layers; fields that the writers do not read are empty."""
    cell = Cell(torch="2.7.1", cuda="12.1", flavor="runtime", os="debian12", python="3.11")
    resolution = Resolution(
        cell=cell,
        status=Status.NATIVE,
        build=None,
        min_driver=None,
        full_driver=None,
        requirements=(),
        constraints=(),
        limits=(),
    )
    base = LockedBase(
        os="debian12", python="3.11.2", digest=ZERO, diff_id=ZERO, size=1, unpacked=1, encoder="", packages=()
    )
    locked = LockedCell(
        resolution=resolution, wheels=(), base=base, as_of="2026-01-01", epoch=EPOCH, inputs=ZERO, layers=()
    )
    return ImagePlan(
        locked=locked,
        tag=tag,
        aliases=("v2.7",),
        layers=tuple(OverlayLayer(title=title) for title in titles),
        config=config(**changes),
        epoch=EPOCH,
        recipe=1,
    )


BASE = files(etc__motd=b"hello\n", opt__venv__bin__python=b"#!")
OWN = (Member(name="opt/venv/x.py", data=b"x = 1\n"),)


def build(folder: Path, *tars: bytes, pack: Callable[[bytes], bytes] = members_of, tag: str = "a") -> Layout:
    """A layout with an image of the base and *tars* on top."""
    store = BlobFolder(folder / "store")
    layers = [store.layer("base", tar_of(BASE))]
    layers += [store.layer(f"layer {number}", tar, pack=pack) for number, tar in enumerate(tars)]
    write_image(folder / "layout", plan(tag), layers, store.path)
    return open_layout(folder / "layout")


def words(layout: Layout, ref: str | None = None) -> list[str]:
    """The faults, as shown to the user."""
    return [str(fault) for fault in validate(layout.path, ref)]
