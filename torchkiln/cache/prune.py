"""Deletes the entries of the cache that nothing needs; finds damaged entries, and repairs them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cache.usage import LEFTOVERS, CacheUsage, Entry
from torchkiln.engine.worker import cores
from torchkiln.errors import KilnError
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.unpack import set_root_aside
from torchkiln.store.file_locks import clear
from torchkiln.store.store import Store
from torchkiln.util import scratch
from torchkiln.util.files import remove_tree, tree_size
from torchkiln.util.strict_json import json_of
from torchkiln.wheel.bytecode import read_pack


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunePolicy:
    """The entries to delete; by default those that no tag and no lock can use, after their lifetime."""

    older_than: float | None = None  # delete unprotected entries that were not used for so many seconds
    max_size: int | None = None  # delete the least recently used unprotected entries, down to so many bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """The entries that were deleted, or would be with --dry-run, and those that are left in the cache."""

    gone: tuple[Entry, ...]
    left: tuple[Entry, ...]


def expendable(entries: Iterable[Entry], policy: PrunePolicy, *, now: float) -> Iterator[Entry]:
    """The unprotected entries that *policy* deletes: all leftovers, then the least recently used."""
    entries = tuple(entries)
    left = total(entries)
    loose = (entry for entry in entries if not entry.protected)
    for entry in sorted(loose, key=lambda entry: (entry.kind != LEFTOVERS, entry.used, entry.path)):
        limit = policy.older_than
        if limit is None:
            limit = entry.lifetime if policy.max_size is None else 0.0
        fits = policy.max_size is not None and left <= policy.max_size
        if entry.kind == LEFTOVERS or (max(now - entry.used, 0.0) >= limit and not fits):
            left -= entry.size
            yield entry


def prune(
    store: Store, look: Callable[[], CacheUsage], policy: PrunePolicy, *, dry_run: bool = False
) -> Pruned:
    """Delete the entries that *policy* selects. Builds may run meanwhile: files that they claim are kept.

    Entries are renamed first, while no build can start, and deleted afterwards.

    :raises BuildFailed: the cache cannot be written.
    """
    with contextlib.nullcontext() if dry_run else store.gate():
        entries = look().entries
        gone = tuple(expendable(entries, policy, now=time.time()))
        aside = [] if dry_run else [path for entry in gone for path in set_entry_aside(store, entry)]
    if not dry_run:
        for path in aside:
            remove_tree(path)
        scratch.sweep()  # temporary folders of killed processes, outside of the cache
        gone = tuple(entry for entry in gone if not (store.root / entry.path).exists())
    paths = {entry.path for entry in gone}
    return Pruned(gone=gone, left=tuple(entry for entry in entries if entry.path not in paths))


def set_entry_aside(store: Store, entry: Entry) -> list[Path]:
    """Rename an entry; its records first, so that no record refers to a missing file.

    :returns: the paths that the caller has to delete.
    """
    path = store.root / entry.path
    if path.parent.name == "locks":
        clear(path)  # not renamed: another process may be taking the lock
        return []
    aside = store.set_aside(store.root / record for record in entry.records)
    aside += set_root_aside(store, path) if entry.kind == "rootfs" else store.set_aside([path])
    if entry.path.startswith(("wheels/", "debs/")):
        with contextlib.suppress(OSError):  # the folder is not empty
            path.parent.rmdir()
    return aside


def total(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)


def freed(entries: Iterable[Entry]) -> int:
    """Bytes that the deletion of *entries* frees on the disk."""
    return sum(entry.size for entry in entries if not entry.shared)


_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFault:
    entry: Entry
    what: str

    @property
    def tags(self) -> tuple[str, ...]:
        """Images with the same fault, because the file in their layout is a hard link to the damaged file."""
        return self.entry.users if self.entry.shared else ()


def faults(
    store: Store, found: CacheUsage, *, advanced: Callable[[int], None] = lambda _: None
) -> tuple[CacheFault, ...]:
    """Check every hash, pack and record, and the size of every unpacked image.

    Hashes run in parallel: hashlib releases the GIL.

    :param advanced: called with the bytes read, from several threads.
    """

    def check(entry: Entry) -> CacheFault | None:
        try:
            what = _fault(store, entry, advanced)
        except FileNotFoundError:  # deleted in the meantime
            return None
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        return CacheFault(entry=entry, what=what) if what else None

    with ThreadPoolExecutor(cores()) as threads:
        largest_first = sorted(found.entries, key=lambda entry: -entry.size)
        return tuple(fault for fault in threads.map(check, largest_first) if fault)


def repair(
    store: Store, fault: CacheFault, found: CacheUsage, fetch: Callable[[LockedWheel], object]
) -> tuple[bool, str]:
    """Delete a damaged entry, and download it again if it is a wheel that a lock names.

    The next build rebuilds a deleted layer, and replaces it in its layout.

    :returns: whether the cache is repaired, and what was done.
    """
    entry = fault.entry
    if entry.busy and entry.kind == "rootfs":
        return False, f"not changed: {entry.busy}"
    with store.gate():
        aside = set_entry_aside(store, entry)
    for path in aside:
        remove_tree(path)
    if (store.root / entry.path).exists():
        return False, "cannot be deleted"
    wheel = found.wheels.get(entry.path)
    if wheel is None:
        return True, "deleted; will be downloaded or rebuilt when needed"
    try:
        fetch(wheel)
    except KilnError as error:
        return False, f"deleted, but it cannot be downloaded again: {error.message}"
    return True, "downloaded again"


def _fault(store: Store, entry: Entry, advanced: Callable[[int], None]) -> str:
    path = store.root / entry.path
    match entry.kind:
        case "blobs" | "wheels" | "debs":
            expected = path.name if entry.kind == "blobs" else path.parent.name
            if (sha256 := _sha256(path, advanced)) != expected:
                return f"checksum mismatch (sha256 is {sha256})"
            faults = (_record_fault(store.root / name, entry.size) for name in entry.records)
            return next(filter(None, faults), "")
        case "bytecode":
            return _pack_fault(path, advanced)
        case "rootfs":
            record = store.record("roots", path.name)
            size, files = tree_size(path)
            if record and (size, files) != (record["bytes"], record["files"]):
                expected = f"{record['files']} files, {record['bytes']} bytes"
                return f"it has {files} files, {size} bytes; expected {expected}"
        case "records":
            return _record_fault(path, None)
        case "leftovers" if entry.path.startswith(("records/layers/", "records/bases/")):
            return "refers to a missing blob"
    return ""


def _record_fault(path: Path, size: int | None) -> str:
    try:
        record = json_of(path.read_bytes())
    except ValueError:
        return f"{path.name}: invalid JSON"
    named = record.get("size") if isinstance(record, dict) else None
    if size is not None and named != size:
        return f"wrong size: its record says {str(named)[:40]} bytes"
    return ""


def _pack_fault(path: Path, advanced: Callable[[int], None]) -> str:
    with path.open("rb") as pack:
        try:
            for _ in read_pack(pack):
                pass
        except ValueError as error:
            return str(error)
        advanced(pack.tell())
    return ""


def _sha256(path: Path, advanced: Callable[[int], None]) -> str:
    hasher, piece = hashlib.sha256(), bytearray(_PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            hasher.update(memoryview(piece)[:count])
            advanced(count)
    return hasher.hexdigest()
