"""Extracts .deb files: the tree that dpkg unpacks, before any script of a package runs.

Contents are written to a few temporary files; no path of a package is created on this machine.

A .deb (deb(5)) is an ar archive of debian-binary, control.tar and data.tar; the tars are compressed with
gzip, xz or zstd, or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import posixpath
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.errors import BuildFailed
from torchkiln.model.lock import DebFile
from torchkiln.oci.opening import bounded
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarEntry, TarReader, most_unpacked, pieces_of
from torchkiln.util.deb822 import paragraphs

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


_INFO = "var/lib/dpkg/info"
STREAMS = 8  # packages that are downloaded at the same time
_WORKERS = 2  # packages that are extracted at the same time; each needs a core, and about 100 MB of memory
_PIECE = 1 << 20
_LINKS = 8  # most links from a name to its file

#: The path of a package's file, whose hash was verified; it may be downloaded first.
DebPath = Callable[[DebFile], Path]
_Filters = tuple[tuple[bool, re.Pattern[str]], ...]
_MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes before each member: name, time, owner, group, mode, size, end
_OPEN: Mapping[str, Callable[[BinaryIO], object]] = {
    "": lambda file: file,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".zst": zstd.ZstdFile,
}


@contextmanager
def damage(what: str, hint: str = "") -> Iterator[None]:
    """Convert an error about damaged data in the `with` block, but not one of the disk.

    :raises BuildFailed: *what*, and the reason.
    """
    try:
        yield
    except (lzma.LZMAError, zstd.ZstdError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BuildFailed(f"{what}: {error}", hint=hint) from error


class Spool:
    """A temporary file for the contents of a tree; thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._end, self._lock = file, 0, threading.Lock()

    def add(self, pieces: Iterable[bytes | memoryview], size: int) -> Spooled:
        with self._lock:
            at, self._end = self._end, self._end + size
        place = Spooled(self._file.fileno(), at)
        for piece in pieces:
            while piece:
                count = os.pwrite(place.file, piece, at)
                at, piece = at + count, piece[count:]
        return place


@dataclass(frozen=True, slots=True)
class Spooled:
    """The place of a content: in the file descriptor `file`, from byte `offset` on."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class Node:
    entry: TarEntry
    content: bytes | Spooled = b""

    def pieces(self) -> Iterator[bytes]:
        """The content, in pieces of the same length.

        :raises OSError: the temporary file cannot be read.
        """
        for start in range(0, self.entry.size, _PIECE):
            end = min(start + _PIECE, self.entry.size)
            if isinstance(self.content, bytes):
                yield self.content[start:end]
            else:
                yield os.pread(self.content.file, end - start, self.content.offset + start)


Tree = dict[str, Node]  # by path


def file_at(path: str, tree: Tree) -> Node | None:
    """The file at *path* of *tree*, or to which links there lead; None: there is none."""
    for _ in range(_LINKS):  # each followed in the folder of the last
        node = tree.get(path)
        if node is None or node.entry.kind not in ("link", "hard link"):
            return node if node and node.entry.kind == "file" else None
        folder = f"/{posixpath.dirname(path)}" if node.entry.kind == "link" else "/"
        path = posixpath.normpath(posixpath.join(folder, node.entry.target)).lstrip("/")
        path = f"usr/{path}" if path.startswith("lib/") and path not in tree else path
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackRules:
    """How packages are unpacked."""

    epoch: int  # seconds since 1970; later times become this one
    dpkg_options: tuple[str, ...]  # "path-exclude=/usr/share/man/*"
    merged: Mapping[str, str] = field(hash=False)  # top-level folders that are links: "bin" -> "usr/bin"

    def placed(self, path: str) -> str:
        """*path* in the tree, where top-level folders may be links."""
        top, slash, rest = path.partition("/")
        return f"{self.merged[top]}/{rest}" if slash and top in self.merged else path


def order(path: str) -> tuple[str, ...]:
    """The key by which GNU tar sorts: each folder is followed by all that is in it."""
    return tuple(path.split("/")) if path else ()


def plain_tree(debs: Sequence[DebFile], path_of: DebPath, rules: UnpackRules, spool: Spool) -> Tree:
    """The tree of *debs*. If several packages have a path, the first one's node is used.

    Packages are extracted while others are downloaded.

    :raises BuildFailed: a file cannot be had, or is not a valid .deb.
    :raises OSError: the disk is full.
    """
    filters = tuple(_filters(rules.dpkg_options))
    extracting = threading.Semaphore(_WORKERS)

    def extracted(deb: DebFile) -> Tree:
        path = path_of(deb)
        with extracting:
            return dict(_nodes(deb, path, rules, filters, spool))

    largest_first = sorted(debs, key=lambda deb: -deb.size)
    with ThreadPoolExecutor(STREAMS) as pool:
        trees = dict(zip(largest_first, pool.map(extracted, largest_first), strict=True))
    whole: Tree = {}
    for deb in debs:
        whole = trees[deb] | whole
    return whole | dict(_by_first_name(whole))


def tree_of(stream: BinaryIO, spool: Spool) -> Tree:
    """The tree of the tar *stream*.

    :raises ValueError: it is damaged, or has an entry twice.
    """
    tree: Tree = {}
    tar = TarReader(pieces_of(stream))
    for entry in tar:
        if entry.path in tree:
            raise ValueError(f"duplicate entry: {entry.path}")
        tree[entry.path] = Node(
            replace(entry, mode=entry.mode & 0o7777), spool.add(tar.content(), entry.size)
        )
    return tree


def _filters(options: Iterable[str]) -> Iterator[tuple[bool, re.Pattern[str]]]:
    """dpkg's filters in order, as (whether it excludes, pattern); the last one that matches decides."""
    for option in options:
        name, _, glob = option.partition("=")
        yield name == "path-exclude", re.compile(translate(glob))


def _is_excluded(path: str, filters: _Filters) -> bool:
    return next((excludes for excludes, glob in reversed(filters) if glob.match(f"/{path}")), False)


def _nodes(
    deb: DebFile, file: Path, rules: UnpackRules, filters: _Filters, spool: Spool
) -> Iterator[tuple[str, Node]]:
    """Every path that dpkg creates for *deb*, with its node."""
    listed = []
    with open_deb(file, deb) as (control, data):
        tar = TarReader(pieces_of(data))
        for entry in tar:
            if entry.kind not in ("file", "hard link", "link", "folder"):
                raise ValueError(f"{entry.path} is a {entry.kind}")
            listed.append(f"/{entry.path}" if entry.path else "/.")
            path = rules.placed(entry.path)
            if not path or path in rules.merged or _is_excluded(entry.path, filters):
                continue
            target = rules.placed(entry.target) if entry.kind == "hard link" else entry.target
            place = spool.add(tar.content(), entry.size)
            mode, mtime = entry.mode & 0o7777, min(entry.mtime, rules.epoch)
            yield path, Node(replace(entry, path=path, mode=mode, mtime=mtime, target=target), place)
        yield from _info(control, listed, rules.epoch)


def _info(
    control: Mapping[str, ControlFile], listed: Sequence[str], epoch: int
) -> Iterator[tuple[str, Node]]:
    fields = next(paragraphs(control["control"].data.decode().splitlines()), {})
    suffix = f":{fields.get('architecture')}" if fields.get("multi-arch") == "same" else ""
    stem = f"{_INFO}/{fields.get('package')}{suffix}"
    for name, file in control.items():
        if name != "control":
            mode, mtime = file.entry.mode & 0o7777, min(file.entry.mtime, epoch)
            entry = replace(file.entry, path=f"{stem}.{name}", mode=mode, mtime=mtime)
            yield entry.path, Node(entry, file.data)
    text = "".join(f"{path}\n" for path in listed).encode()
    entry = TarEntry(f"{stem}.list", "file", 0o644, 0, 0, epoch, len(text), "", (0, 0), ())
    yield entry.path, Node(entry, text)


def _by_first_name(tree: Tree) -> Iterator[tuple[str, Node]]:
    """Each file with several names under the first of them, and the other names as links to that one."""
    names: dict[str, list[str]] = {}
    for path, node in tree.items():
        if node.entry.kind == "hard link":
            names.setdefault(node.entry.target, [node.entry.target]).append(path)
    for file, links in names.items():
        if file in tree:
            first, *others = sorted(links, key=order)
            yield first, Node(replace(tree[file].entry, path=first), tree[file].content)
            for path in others:
                entry = replace(tree[file].entry, path=path, kind="hard link", size=0, target=first)
                yield path, Node(entry)


@dataclass(frozen=True, slots=True)
class ControlFile:
    entry: TarEntry
    data: bytes


@contextmanager
def open_deb(path: Path, deb: DebFile) -> Iterator[tuple[dict[str, ControlFile], BinaryIO]]:
    """The control files of *deb* at *path*, by name ("control" and others), and the tar of its files.

    :raises BuildFailed: its hash differs, or it is not a valid .deb file, also while the tar is read.
    """
    hint = "run: torchkiln cache verify --repair"
    with damage(f"{deb.filename}: not a valid .deb file", hint):
        data = path.read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != deb.sha256:
            raise ValueError(f"checksum mismatch: sha256 {found}, {deb.sha256} in the lock")
        members = dict(_members(data))
        files = {}
        reader = TarReader(pieces_of(_tar_of(members, "control.tar")))
        for entry in reader:
            if entry.kind == "file":
                files[entry.path] = ControlFile(entry, b"".join(reader.content()))
        if "control" not in files:
            raise ValueError("it has no control file")
        yield files, _tar_of(members, "data.tar")


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member of the ar archive *data*."""
    if not data.startswith(_MAGIC):
        raise ValueError("not an ar archive")
    at = len(_MAGIC)
    while at < len(data):
        header = data[at : at + _HEADER]
        if len(header) < _HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise ValueError(f"malformed ar header at byte {at}")
        size, at = int(header[48:58]), at + _HEADER
        if at + size > len(data):
            raise ValueError("truncated")
        yield header[:16].decode("ascii", "replace").strip().rstrip("/"), data[at : at + size]
        at += size + size % 2


def _tar_of(members: Mapping[str, bytes], name: str) -> BinaryIO:
    """The tar *name*, "data.tar", uncompressed."""
    for suffix, opened in _OPEN.items():
        if (data := members.get(name + suffix)) is not None:
            limit = most_unpacked(len(data))
            stream = cast(BinaryIO, opened(BytesIO(data)))
            return bounded(stream, limit, partial(ValueError, f"{name} unpacks to more than {limit} bytes"))
    raise ValueError(f"it has no {name}")
