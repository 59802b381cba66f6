"""Unpacks an image in the cache, and verifies the files of an image that was unpacked before.

The hashes of files that were read are kept, so that unchanged files are not read again. A file counts as
unchanged if its size, times and inode are the same. On a local file system a program can set the mtime of a
file, but not its ctime. On NFS and FUSE a server sets both, so every file is read every time.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest import machine_key
from torchkiln.errors import BuildFailed, printable
from torchkiln.oci.layer_index import IndexedEntry, TreeItem
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import LayerBlob, forget_root, root_of, unpacked_root
from torchkiln.runtimes.layer_indexes import keep_index, kept_tree
from torchkiln.runtimes.runtime import RuntimeListener
from torchkiln.store.store import Store

RECORDS = "hashes"
_TYPE = "application/vnd.torchkiln.file-hashes"  # payload type
# ext4, XFS, Btrfs, tmpfs and overlay, from linux/magic.h and fs/xfs/libxfs/xfs_format.h
_LOCAL = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630})
_RECENT_NS = 2_000_000_000  # a file that changed this shortly before may change again with the same ctime
_STATFS = 256  # bytes; longer than struct statfs

Stamp = tuple[int, int, int, int]  # size, mtime_ns, ctime_ns, inode
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_NAMED = 3  # maximum of differences in a message
_PIECE = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITABLE = 0o022  # the mode's bits that let other users than the owner write


def layers_of(image: ImageOnDisk) -> list[LayerBlob]:
    return [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]


def unpacked(image: ImageOnDisk, store: Store, listener: RuntimeListener, *, reuse: bool = True) -> Path:
    """The unpacked *image* in the cache, unpacked at the first call.

    :param reuse: the files of an unpacked parent image may be used.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the disk is full or not writable.
    """
    listener.unpacks(image, there=root_of(store, image.manifest).is_dir())
    return unpacked_root(
        image.manifest,
        layers_of(image),
        store,
        indexed=lambda diff_id, index: keep_index(store, diff_id, index),
        reuse=reuse,
    )


def verified(
    image: ImageOnDisk, store: Store, listener: RuntimeListener
) -> tuple[Mapping[str, TreeItem], str]:
    """Compare the unpacked *image* with its layers; return its tree and the time of the comparison, in UTC.

    A copy that differs or has no signed indexes is deleted, and the image is unpacked again.

    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the copy differs while a command runs in it, or differs again after it was unpacked;
        or the disk is full or not writable.
    """
    root, layers = unpacked(image, store, listener), layers_of(image)
    tree = kept_tree(store, layers)
    faults = ["its list of files is missing or not signed by this machine's key"]
    if tree is not None and not (faults := _differences(root, tree, store)):
        return tree, _now()
    listener.say(f"the unpacked image differs from its layers and is unpacked again: {_shortened(faults)}")
    forget_root(store, image.manifest)
    if root.exists():
        raise BuildFailed(
            f"{root} differs from the image, and a command is running in it",
            hint="stop that command, and run again",
        )
    unpacked(image, store, listener, reuse=False)  # a file of the parent image may be damaged
    tree = kept_tree(store, layers)
    if tree is None or (faults := _differences(root, tree, store)):
        raise BuildFailed(
            f"{root} differs from the layers that were just unpacked: {_shortened(faults)}",
            hint="check the disk, and whether another program changes the cache",
        )
    return tree, _now()


def _differences(root: Path, tree: Mapping[str, TreeItem], store: Store) -> list[str]:
    hashes = load_hashes(store, root)
    found = differences(root, tree, hashes)
    save_hashes(store, root, hashes)
    return found


def _shortened(faults: Sequence[str]) -> str:
    more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return printable("; ".join(faults[:_NAMED])) + more


def _now() -> str:
    return datetime.now(timezone.utc).strftime(_TIME)


def differences(root: Path, tree: Mapping[str, TreeItem], hashes: KnownHashes) -> list[str]:
    """The differences between the files below *root* and *tree*, as sorted sentences.

    If the caller is not root, the expected owner is the caller, and files that the owner cannot read are
    skipped.
    """
    expected = {path: item.entry for path, item in tree.items()}
    found = dict(_walk(root))
    faults = [f"{path}: is missing" for path in expected.keys() - found.keys() if path]
    faults += [f"{path}: is not in the image" for path in found.keys() - expected.keys() if path]
    files: list[tuple[str, os.stat_result]] = []
    for path in found.keys() & expected.keys():
        if fault := _fault(expected[path], found[path], root / path):
            faults.append(f"{path or '/'}: {fault}")
        elif expected[path].kind == "file" and hashes.find(path, found[path]) != expected[path].sha256:
            files.append((path, found[path]))
    files.sort(key=lambda item: -item[1].st_size)  # the longest first, so that all threads end together

    def changed(item: tuple[str, os.stat_result]) -> str:
        path, status = item
        try:
            sha256 = _sha256(root / path, status)
        except PermissionError:
            return "" if os.geteuid() and not status.st_mode & stat.S_IRUSR else f"{path}: cannot be read"
        except OSError as error:
            return f"{path}: cannot be read: {error.strerror}"
        hashes.add(path, status, sha256)
        return "" if sha256 == expected[path].sha256 else f"{path}: its content differs"

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        faults += filter(None, pool.map(changed, files))
    return sorted(faults)


def _fault(expected: IndexedEntry, found: os.stat_result, path: Path) -> str:
    """How the status *found* of *path* differs from *expected*; empty if it does not."""
    kinds = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "link": stat.S_ISLNK}
    if not kinds[expected.kind](found.st_mode):
        return f"is not a {expected.kind}"
    mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    own = (expected.uid, expected.gid) if os.geteuid() == 0 else (os.geteuid(), found.st_gid)
    if owner != own:
        return f"its owner is {owner[0]}:{owner[1]}, expected {own[0]}:{own[1]}"
    if expected.mtime is None:  # no layer contains this folder, so no layer sets its mode
        return f"its mode is {mode:04o}, expected 0755" if mode & _WRITABLE else ""
    if expected.kind == "link":
        target = os.readlink(path)
        return "" if target == expected.target else f"is a link to {target!r}, expected {expected.target!r}"
    if mode != expected.mode:
        return f"its mode is {mode:04o}, expected {expected.mode:04o}"
    if expected.kind == "file" and found.st_size != expected.size:
        return f"has {found.st_size} bytes, expected {expected.size}"
    seconds = found.st_mtime_ns // 1_000_000_000
    return "" if seconds == expected.mtime else f"its time is {seconds}, expected {expected.mtime}"


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The status of everything below *root* by path, without following links."""
    yield "", os.lstat(root)
    folders = [""]
    while folders:
        above = folders.pop()
        with os.scandir(root / above) as listed:
            for entry in listed:
                path = f"{above}/{entry.name}" if above else entry.name
                status = entry.stat(follow_symlinks=False)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)


def _sha256(path: Path, expected: os.stat_result) -> str:
    """:raises OSError: it cannot be read, or is no longer the file with that status."""
    digest = hashlib.sha256()
    with open(os.open(path, _FLAGS), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != (expected.st_dev, expected.st_ino):
            raise OSError(0, "it was replaced while it was read")
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@dataclass(kw_only=True, slots=True)
class KnownHashes:
    """The hashes of the files below one root, by path. Several threads may call `add`."""

    known: Mapping[str, tuple[Stamp, str]] = field(default_factory=dict)
    seen: dict[str, tuple[Stamp, str]] = field(default_factory=dict)
    read: int = 0  # the number of files whose hash was not known
    began_ns: int = field(default_factory=time.time_ns)

    def find(self, path: str, found: os.stat_result) -> str | None:
        """The SHA-256 of the file if it is known."""
        stamp, sha256 = self.known.get(path, (None, ""))
        if stamp != stamp_of(found):
            return None
        self.seen[path] = (stamp, sha256)
        return sha256

    def add(self, path: str, found: os.stat_result, sha256: str) -> None:
        """Record the hash of a file, unless it changed recently; *found*: its status before it was read."""
        self.read += 1
        if max(found.st_ctime_ns, found.st_mtime_ns) < self.began_ns - _RECENT_NS:
            self.seen[path] = (stamp_of(found), sha256)


def stamp_of(found: os.stat_result) -> Stamp:
    """The values in *found* that change when the content of the file changes."""
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def is_local(folder: Path) -> bool:
    """Whether only the kernel sets a ctime in the file system of *folder*, not a server or a program."""
    buffer = ctypes.create_string_buffer(_STATFS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        return False
    return int.from_bytes(buffer.raw[:4], "little") in _LOCAL  # f_type is the first field


def load_hashes(store: Store, root: Path) -> KnownHashes:
    """The hashes of the files below *root* that this machine signed; none if its file system is not local."""
    record = store.record(RECORDS, root.name) if is_local(root) else None
    payload = machine_key.verified(store, _TYPE, record, where=f"hashes of {root.name}") if record else None
    if payload is None:
        return KnownHashes()
    place, rows = json.loads(zlib.decompress(payload))
    if place != _place(root):
        return KnownHashes()
    return KnownHashes(known={path: (tuple(stamp), sha256) for path, (stamp, sha256) in rows.items()})


def save_hashes(store: Store, root: Path, hashes: KnownHashes) -> None:
    """Store the hashes of the files that were seen, signed by this machine, if one of them is new."""
    if not is_local(root) or hashes.seen == hashes.known:
        return
    payload = zlib.compress(json.dumps([_place(root), hashes.seen], separators=(",", ":")).encode(), 1)
    store.put_record(RECORDS, root.name, machine_key.signed(store, _TYPE, payload))


def _place(root: Path) -> list[object]:
    found = root.stat()
    return [root.name, found.st_dev, found.st_ino]
