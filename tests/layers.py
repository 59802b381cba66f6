"""Wheels -> layers for tests, and what a layer or a folder holds, told in one form so that they compare."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchkiln.model.layer import Blob
from torchkiln.model.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.oci.layer import LayerWriter
from torchkiln.wheel.bytecode import Code
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

SCHEME = Scheme(prefix=PREFIX, python="3.11")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One path of a file tree; `data` is a link's target for a link."""

    kind: str
    mode: int
    data: bytes = b""


def no_code(_path: str) -> bytes | None:
    """Byte-code of nothing."""
    return None


def pretended_code(path: str) -> bytes:
    """A .pyc that only tells where its source is."""
    return f"the code of {path}".encode()


def sha256(path: Path) -> str:
    """Of a file, hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def layer_of(
    wheels: Iterable[Path],
    *,
    code: Callable[[str], bytes | None] = no_code,
    tail: int = 0,
    scheme: Scheme = SCHEME,
) -> tuple[bytes, Blob]:
    """The blob that *wheels* give and what the writer says of it; *tail* bytes of each come beforehand."""
    out = io.BytesIO()
    layer = LayerWriter(out, mtime=WHEEL_EPOCH)
    for wheel in wheels:
        add(wheel, layer, code=code, tail=tail, scheme=scheme)
    written = layer.finish()
    return out.getvalue(), written


def add(
    wheel: Path,
    layer: LayerWriter,
    *,
    code: Callable[[str], bytes | None] = no_code,
    tail: int = 0,
    locked: str = "",
    scheme: Scheme = SCHEME,
) -> None:
    """Splice *wheel* into *layer*; *locked* is the hash it must have, its own if none is told."""
    sources: list[str] = []

    def bytecode() -> list[Code]:
        return [Code.of(path, made) for path in sources if (made := code(path)) is not None]

    size = wheel.stat().st_size
    end = wheel.read_bytes()[max(0, size - tail) :] if tail else b""
    with WheelFile(wheel, size, tail=end) as file:
        splice(
            file,
            wheel.name,
            locked or sha256(wheel),
            layer,
            scheme,
            source=lambda path, _data: sources.append(path),
            bytecode=bytecode,
        )


def tree_of_layer(blob: bytes) -> dict[str, Item]:
    """What Python's tarfile finds in a layer; a path that comes twice is a fault."""
    found: dict[str, Item] = {}
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz") as tar:
        for member in tar:
            assert member.name not in found, f"{member.name} comes twice"
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.mtime == WHEEL_EPOCH
            file = tar.extractfile(member) if member.isreg() else None
            kind = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link"}[member.type]
            data = file.read() if file else member.linkname.encode()
            found[member.name] = Item(kind=kind, mode=member.mode, data=data)
    return found


def tree_of_folder(root: Path) -> dict[str, Item]:
    """What lies below *root*."""
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            item = Item(kind="link", mode=0o777, data=str(path.readlink()).encode())
        elif stat.S_ISDIR(mode):
            item = Item(kind="folder", mode=stat.S_IMODE(mode))
        else:
            item = Item(kind="file", mode=stat.S_IMODE(mode), data=path.read_bytes())
        found[str(path.relative_to(root))] = item
    return found
