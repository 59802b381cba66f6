"""Writes a tree as the tar that mmdebstrap writes, or as the tar of a layer on top of a base. Pure."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace

from torchkiln.base.plain_tree import Tree, order
from torchkiln.oci.tar import BLOCK, END, TYPES, entry_header, padding
from torchkiln.oci.tar_reader import TarEntry

_RECORD = 20 * BLOCK  # GNU tar fills its last record
_NAME = 100  # bytes of a name or a link target in a header
_XATTR = "SCHILY.xattr."


def mmdebstrap_tar(tree: Tree, epoch: int) -> Iterator[bytes]:
    """The tar of a base: an empty /dev, then GNU tar's output with the options that mmdebstrap uses."""
    yield dev_folder(epoch)
    size = 0
    for path in sorted(tree, key=order):
        if path == "dev":
            continue
        node = tree[path]
        head = _gnu_header(node.entry, epoch)
        size += len(head) + node.entry.size + -node.entry.size % BLOCK
        yield head
        if node.entry.kind == "file":
            yield from node.pieces()
            yield padding(node.entry.size)
    yield bytes(-(size + len(END)) % _RECORD) + END


def layer_tar(tree: Tree) -> Iterator[bytes]:
    """The tar of a layer, as `base/on_top.py` writes it."""
    for path in sorted(tree):
        node = tree[path]
        yield entry_header(node.entry)
        if node.entry.kind == "file":
            yield from node.pieces()
            yield padding(node.entry.size)
    yield END


def dev_folder(epoch: int) -> bytes:
    """The tar header of an empty /dev; mmdebstrap writes either no /dev or one with device nodes."""
    info = tarfile.TarInfo("./dev/")
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, epoch
    return info.tobuf(tarfile.USTAR_FORMAT)


def _gnu_header(entry: TarEntry, epoch: int) -> bytes:
    """The header of *entry*, after an extended header if its path is not ASCII, or a text is long."""
    name = f"./{entry.path}" + "/" * (entry.kind == "folder" and entry.path != "")
    target = f"./{entry.target}" if entry.kind == "hard link" else entry.target
    records = [("path", name)] if _is_long(name) or not name.isascii() else []
    records += [("linkpath", target)] if _is_long(target) else []
    records += [(f"{_XATTR}{key}", value) for key, value in entry.xattrs]
    extended = b"".join(_record(key, value) for key, value in records)
    head = b""
    if extended:
        folder, _, last = name.rstrip("/").rpartition("/")
        about = replace(entry, mode=0o644, uid=0, gid=0, size=len(extended), mtime=epoch)
        head = _block(f"{folder}/PaxHeaders/{last}", "", about, b"x") + extended + padding(len(extended))
    return head + _block(name, target, entry, TYPES[entry.kind])


def _is_long(text: str) -> bool:
    return len(text.encode("utf-8", "surrogateescape")) > _NAME


def _record(key: str, value: str) -> bytes:
    """A record of an extended header; its length includes the digits of the length."""
    rest = f" {key}={value}\n".encode("utf-8", "surrogateescape")
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _block(name: str, target: str, entry: TarEntry, kind: bytes) -> bytes:
    # GNU tar writes the fields for devices, except in the header of an extended header.
    device = bytes(16) if kind == b"x" else b"0000000\0" * 2
    size = 0 if kind == tarfile.LNKTYPE else entry.size
    numbers = (entry.mode, entry.uid, entry.gid, size, entry.mtime)
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (_field(name), *numbers)
    rest = kind + _field(target) + b"ustar\00000" + bytes(64) + device
    rest = rest.ljust(BLOCK - len(head) - 8, b"\0")
    return b"%b%06o\0 %b" % (head, sum(head) + 8 * 0x20 + sum(rest), rest)


def _field(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")[:_NAME].ljust(_NAME, b"\0")
