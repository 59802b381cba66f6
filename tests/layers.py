"""Make layers from wheels, and read the tree of a layer or a folder in a common form."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchkiln.model.cell import Source
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.oci.layer import LayerWriter
from torchkiln.wheel.bytecode import Code
from torchkiln.wheel.cut import Cut
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
    """Return None for every source file: the layer then has no .pyc files."""
    return None


def pretended_code(path: str) -> bytes:
    """An invented .pyc, which only contains the path of its source file."""
    return f"the code of {path}".encode()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def as_locked(wheel: Path, sha256_of_lock: str = "") -> LockedWheel:
    """The lock entry of the file *wheel*, by default with the file's hash; its name need not be valid."""
    return LockedWheel(
        name="some",
        version="1.0",
        filename=wheel.name,
        sha256=sha256_of_lock or sha256(wheel),
        size=wheel.stat().st_size,
        index=Source.DEFAULT,
    )


def layer_of(
    wheels: Iterable[Path],
    *,
    code: Callable[[str], bytes | None] = no_code,
    tail: int = 0,
    scheme: Scheme = SCHEME,
    cut: Cut | None = None,
) -> tuple[bytes, Blob]:
    """The layer of *wheels*, and its `Blob`; *tail* as in `add`."""
    out = io.BytesIO()
    layer = LayerWriter(out, mtime=WHEEL_EPOCH)
    for wheel in wheels:
        add(wheel, layer, code=code, tail=tail, scheme=scheme, cut=cut)
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
    cut: Cut | None = None,
) -> None:
    """Splice *wheel* into *layer*.

    :param tail: number of bytes at the end of the wheel that are read beforehand.
    :param locked: the required hash, by default that of the file.
    """
    sources: list[str] = []

    def bytecode() -> list[Code]:
        return [Code.of(path, made) for path in sources if (made := code(path)) is not None]

    size = wheel.stat().st_size
    end = wheel.read_bytes()[max(0, size - tail) :] if tail else b""
    with WheelFile(wheel, size, tail=end) as file:
        splice(
            file,
            as_locked(wheel, locked),
            layer,
            scheme,
            source=lambda path, _data: sources.append(path),
            bytecode=bytecode,
            cut=cut,
        )


def tree_of_layer(blob: bytes) -> dict[str, Item]:
    """The tree of a layer, read with tarfile; each path must occur once."""
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
    """The tree below *root*."""
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
