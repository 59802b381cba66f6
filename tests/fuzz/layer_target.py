"""Fuzz `LayerWriter`: it reports a collision, or tarfile and gzip find exactly what was written."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from pathlib import Path

from tests.fuzz.source import Decisions
from tests.layers import Item, tree_of_layer
from tests.rawzip import deflated
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci.layer import Collision, LayerWriter

_PARTS = ("a", "b", "é", "n" * 101, "m" * 160, "c.py", " ", "漢", "\u0301")
_MODES = (0o644, 0o755, 0o4755, 0o600, 0o777)


def check(data: bytes, _scratch: Path) -> str:
    """The result: "written" or "collision"; raises AssertionError if readers see another tree."""
    decisions = Decisions(data)
    out = io.BytesIO()
    layer = LayerWriter(out, mtime=WHEEL_EPOCH)
    model: dict[str, Item] = {}
    while decisions and len(model) < 15:
        path = "/".join(decisions.choice(_PARTS) for _ in range(1 + decisions.number(3)))
        content = decisions.take(decisions.number(40)) * decisions.choice((1, 1, 1, 1, 1, 1, 3, 2000))
        item = Item(kind="file", mode=decisions.choice(_MODES), data=content)
        fits = _fits(path, item, model)
        try:
            _write(layer, path, item, decisions)
        except Collision:
            assert not fits, path
            return "collision"
        assert fits, path
        model[path] = item
    written = layer.finish()
    blob = out.getvalue()
    plain = gzip.decompress(blob)
    assert (len(blob), len(plain)) == (written.size, written.unpacked)
    assert written.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert written.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    tree = tree_of_layer(blob)
    assert {path: item for path, item in tree.items() if item.kind == "file"} == model
    folders = {str(folder) for path in model for folder in Path(path).parents} - {"."}
    assert {path for path, item in tree.items() if item.kind == "folder"} == folders
    assert all(item.mode == 0o755 for item in tree.values() if item.kind == "folder")
    _folders_first(blob)
    return "written"


def _fits(path: str, item: Item, model: dict[str, Item]) -> bool:
    """Whether *path* may be added: new or identical, and no file where a folder is needed."""
    above = [str(folder) for folder in Path(path).parents]
    below = any(other.startswith(f"{path}/") for other in model)
    return not below and not any(folder in model for folder in above) and model.get(path, item) == item


def _write(layer: LayerWriter, path: str, item: Item, decisions: Decisions) -> None:
    """Write the item by a random method: complete, in plain pieces, or as pieces of a deflate stream."""
    data = item.data
    method = decisions.number(2)
    if method == 0 or (method == 2 and not data):
        layer.file(path, item.mode, data)
        return
    cut = decisions.number(len(data))
    with layer.entry(path, item.mode, size=len(data), crc=zlib.crc32(data)) as member:
        if method == 1:
            for piece in (data[:cut], data[cut:]):
                member.plain(piece)
        else:
            stream = deflated(data)
            at = decisions.number(len(stream))
            member.spliced(stream[:at], data[:cut])
            member.spliced(stream[at:], data[cut:])


def _folders_first(blob: bytes) -> None:
    """Assert that each folder precedes its content."""
    folders = {"."}
    with tarfile.open(fileobj=io.BytesIO(blob)) as tar:
        for member in tar:
            assert str(Path(member.name).parent) in folders, member.name
            if member.isdir():
                folders.add(member.name)


def corpus(_scratch: Path) -> list[bytes]:
    """A few programs."""
    return [bytes(range(n, n + 90)) for n in range(0, 160, 10)]
