"""Keeps the hashes of files that were read, so that an unchanged file need not be read again.

A file counts as unchanged if its size, times and inode are the same. On a local file system a program can set
the mtime of a file, but not its ctime. On NFS and FUSE a server sets both, so every file is read every time.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.attest.machine_key import signed, verified
from torchkiln.store.store import Store

RECORDS = "hashes"
_TYPE = "application/vnd.torchkiln.file-hashes"  # payload type
# linux/magic.h, and fs/xfs/libxfs/xfs_format.h
_LOCAL = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
}
_RECENT_NS = 2_000_000_000  # a file that changed this shortly before may change again with the same ctime
_STATFS = 256  # bytes; longer than struct statfs

Stamp = tuple[int, int, int, int]  # size, mtime_ns, ctime_ns, inode


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
    payload = verified(store, _TYPE, record, where=f"hashes of {root.name}") if record else None
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
    store.put_record(RECORDS, root.name, signed(store, _TYPE, payload))


def _place(root: Path) -> list[object]:
    found = root.stat()
    return [root.name, found.st_dev, found.st_ino]
