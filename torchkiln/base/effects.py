"""Describes what a base has beyond the plain extraction of its packages: the effects of their scripts.

The same packages and effects give the same tar, without running a script: see docs/adr/0049.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchkiln.base.plain_tree import Node, Tree, UnpackRules, file_at, order
from torchkiln.model import fields
from torchkiln.model.digest import Digest
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.tar_reader import TarEntry, plain_path
from torchkiln.util import codec
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of

SCHEMA = 1
LIMIT = 16 << 20  # maximum bytes of the file; that of debian12 has 0.6 million
_UNPACKED = 64 << 20
_MEMBERS = 64  # maximum members of the gzip file; `encode_bytes` writes one for 4 MiB
_CODE = re.compile(r"(?P<folder>.*/)__pycache__/(?P<name>[^/.]+)\.cpython-3\d+\.pyc")
_CHECKED = (3).to_bytes(4, "little")  # flags of a .pyc with the hash of its source, which Python compares

Kind = Literal["file", "hard link", "link", "folder", "byte-code"]
Form = Literal["mmdebstrap", "layer"]
#: Compiles sources, by path in the tree; returns a .pyc for each that compiles, by the same path.
Compile = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One path of the tree that differs from the packages."""

    path: str
    kind: Kind = "file"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int | None = None  # seconds; None: the epoch
    target: str = ""  # of a link
    kept: bool = False  # the content of a file is that of the packages
    text: str = ""  # the content, if it is UTF-8
    base64: str = ""  # the content, if it is not
    xattrs: tuple[str, ...] = ()  # name and value, in base64: "security.capability=AQAAAg=="


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """The differences, and the rules by which the packages were unpacked."""

    form: Form  # of the tar
    blob: fields.Sha256Digest  # what packages and effects give
    epoch: int  # seconds since 1970
    dpkg_options: tuple[str, ...]
    merged: tuple[str, ...]  # top-level folders that are links, with their targets: "bin=usr/bin"
    removed: tuple[str, ...]  # paths of packages that are not in the tree
    changed: tuple[Effect, ...]

    @property
    def rules(self) -> UnpackRules:
        """How the packages are unpacked."""
        return UnpackRules(
            epoch=self.epoch, dpkg_options=self.dpkg_options, merged=dict(map(_pair, self.merged))
        )


def effects_of(
    plain: Tree, finished: Tree, rules: UnpackRules, *, form: Form, blob: Digest, compiled: Compile
) -> Effects:
    """The effects that turn *plain* into *finished*."""
    changed = {path for path in finished if not _is_same(plain.get(path), finished[path])}
    sources = {path: source for path in changed if (source := source_of(path, finished)) is not None}
    made = compiled(dict(sources.values()))
    codes = {path for path, (source, _) in sources.items() if _is_code(finished[path], made.get(source))}
    return Effects(
        form=form,
        blob=blob,
        epoch=rules.epoch,
        dpkg_options=rules.dpkg_options,
        merged=tuple(f"{top}={target}" for top, target in sorted(rules.merged.items())),
        removed=tuple(sorted(plain.keys() - finished.keys(), key=order)),
        changed=tuple(
            _effect(finished[path], plain, rules.epoch, is_code=path in codes)
            for path in sorted(changed, key=order)
        ),
    )


def with_effects(plain: Tree, effects: Effects, compiled: Compile) -> Tree:
    """The inverse of `effects_of`: the finished tree.

    :raises ValueError: *effects* do not fit *plain*.
    """
    removed = frozenset(effects.removed)
    tree = {path: node for path, node in plain.items() if path not in removed}
    codes = []
    for effect in effects.changed:
        if effect.kind == "byte-code":
            codes.append(effect)
        else:
            tree[effect.path] = _node(effect, plain, effects.epoch)
    sources = {}
    for effect in codes:
        if (found := source_of(effect.path, tree)) is None:
            raise ValueError(f"{effect.path}: its source is not in the packages")
        sources[effect.path] = found
    made = compiled(dict(sources.values()))
    for effect in codes:
        code = made.get(sources[effect.path][0])
        if code is None:
            raise ValueError(f"{effect.path}: its source does not compile")
        tree[effect.path] = _with_content(effect, _checked(code), effects.epoch)
    return tree


def to_bytes(effects: Effects) -> bytes:
    """*effects* as the bytes of their file, compressed JSON with a line for each path."""
    values = document(effects)
    changed = ",\n".join(json.dumps(row, ensure_ascii=False) for row in values.pop("changed"))
    head = json.dumps(values, ensure_ascii=False).removesuffix("}")
    return encode_bytes(f'{head}, "changed": [\n{changed}\n]}}\n'.encode())[0]


def from_bytes(data: bytes, where: str) -> Effects:
    """The inverse of `to_bytes`.

    :raises ValueError: *data* is not such a file.
    """
    text = b""
    for _ in range(_MEMBERS):
        if not data:
            break
        inflate = zlib.decompressobj(31)
        try:
            text += inflate.decompress(data, _UNPACKED - len(text) + 1)
        except zlib.error as error:
            raise ValueError(f"not a gzip file: {error}") from error
        data = inflate.unused_data
        if len(text) > _UNPACKED or not inflate.eof:
            raise ValueError(f"truncated, or more than {_UNPACKED >> 20} MiB")
    if data:
        raise ValueError(f"more than {_MEMBERS} gzip members")
    return of_document(json_of(text), where)


def document(effects: Effects) -> dict[str, Any]:
    """*effects* as JSON values."""
    return {"schema": SCHEMA, **codec.plain(effects)}


def of_document(values: Any, where: str) -> Effects:
    """The inverse of `document`.

    :raises ValueError: *values* do not match the schema, or a path is not normalized.
    """
    if faults := sentences(values, shipped("effects"), where):
        raise ValueError(faults[0])
    found = codec.typed(Effects, {key: value for key, value in values.items() if key != "schema"})
    for effect in found.changed:
        plain_path(effect.path or ".", folder=not effect.path)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()


def _decoded(value: str) -> str:
    return base64.b64decode(value).decode("utf-8", "surrogateescape")


def _is_same(plain: Node | None, finished: Node) -> bool:
    return plain is not None and plain.entry == finished.entry and _is_same_content(plain, finished)


def _is_same_content(one: Node, other: Node) -> bool:
    return one.entry.size == other.entry.size and all(
        a == b for a, b in zip(one.pieces(), other.pieces(), strict=True)
    )


def _packaged(path: str, plain: Tree) -> Node | None:
    """The file of the packages at *path*, or to which the hard link there refers."""
    node = plain.get(path)
    return plain.get(node.entry.target) if node and node.entry.kind == "hard link" else node


def _effect(node: Node, plain: Tree, epoch: int, *, is_code: bool) -> Effect:
    entry = node.entry
    packaged = _packaged(entry.path, plain)
    kept = entry.kind == "file" and packaged is not None and _is_same_content(packaged, node)
    text, encoded = "", ""
    if entry.kind == "file" and not kept and not is_code:
        data = b"".join(node.pieces())
        try:
            text = data.decode()
        except UnicodeDecodeError:
            encoded = base64.b64encode(data).decode()
    if entry.kind not in ("file", "hard link", "link", "folder"):
        raise ValueError(f"{entry.path} is a {entry.kind}")
    return Effect(
        path=entry.path,
        kind="byte-code" if is_code else entry.kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime=None if entry.mtime == epoch else entry.mtime,
        target=entry.target,
        kept=kept,
        text=text,
        base64=encoded,
        xattrs=tuple(f"{name}={_encoded(value)}" for name, value in entry.xattrs),
    )


def _node(effect: Effect, plain: Tree, epoch: int) -> Node:
    if not effect.kept:
        try:
            return _with_content(effect, effect.text.encode() or base64.b64decode(effect.base64), epoch)
        except binascii.Error as error:
            raise ValueError(f"{effect.path}: {error}") from error
    packaged = _packaged(effect.path, plain)
    if packaged is None:
        raise ValueError(f"{effect.path} is not in the packages")
    return Node(replace(_entry(effect, epoch), size=packaged.entry.size), packaged.content)


def _with_content(effect: Effect, data: bytes, epoch: int) -> Node:
    return Node(replace(_entry(effect, epoch), size=len(data)), data)


def _entry(effect: Effect, epoch: int) -> TarEntry:
    return TarEntry(
        effect.path,
        "file" if effect.kind == "byte-code" else effect.kind,
        effect.mode,
        effect.uid,
        effect.gid,
        epoch if effect.mtime is None else effect.mtime,
        0,
        effect.target,
        (0, 0),
        tuple((name, _decoded(value)) for name, value in map(_pair, effect.xattrs)),
    )


def source_of(path: str, tree: Tree) -> tuple[str, bytes] | None:
    """Path and content of the source of the .pyc *path*; None if it is no .pyc, or has no source."""
    if not (found := _CODE.fullmatch(path)):
        return None
    source = f"{found['folder']}{found['name']}.py"
    node = file_at(source, tree)
    return (source, b"".join(node.pieces())) if node else None


def _checked(code: bytes) -> bytes:
    """The .pyc *code* with the flags that Python sets if SOURCE_DATE_EPOCH is set, as for mmdebstrap."""
    return code[:4] + _CHECKED + code[8:]


def _is_code(node: Node, code: bytes | None) -> bool:
    return node.entry.kind == "file" and code is not None and b"".join(node.pieces()) == _checked(code)
