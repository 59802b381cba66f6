"""Deletes what the cache no longer needs, finds damaged items, and repairs them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cache.policy import ItemUsage, PrunePolicy, expendable, item_usages
from torchkiln.cache.usage import CacheUsage
from torchkiln.engine.worker import cores
from torchkiln.errors import KilnError
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.unpack import set_root_aside
from torchkiln.store.file_locks import clear
from torchkiln.store.store import Store
from torchkiln.util import scratch
from torchkiln.util.files import remove_tree, tree_size
from torchkiln.wheel.bytecode import read_pack

_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """The items that were deleted, or would be with --dry-run, and the items that are left in the cache."""

    gone: tuple[ItemUsage, ...]
    left: tuple[ItemUsage, ...]

    @property
    def freed(self) -> int:
        """Bytes freed on the disk."""
        return sum(usage.item.size for usage in self.gone if not usage.item.shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFault:
    """A damaged item of the cache."""

    subject: ItemUsage
    what: str

    @property
    def tags(self) -> tuple[str, ...]:
        """Images with the same fault, because the file in their layout is a hard link to the damaged file."""
        if not self.subject.item.shared:
            return ()
        return self.subject.users.get("tag", ("an unknown layout",))


def prune(
    store: Store, look: Callable[[], CacheUsage], policy: PrunePolicy, *, dry_run: bool = False
) -> Pruned:
    """Delete the items that *policy* selects. Builds may run meanwhile: files that they claim are kept.

    Items are renamed first, while no build can start, and deleted afterwards.

    :raises BuildFailed: the cache cannot be written.
    """
    with contextlib.nullcontext() if dry_run else store.gate():
        found = look()
        usages = item_usages(found.items, found.roots)
        gone = expendable(usages, policy, now=time.time())
        aside: list[Path] = []
        if not dry_run:
            for usage in gone:
                _discard(store, usage, aside)
    for path in aside:
        remove_tree(path)
    if not dry_run:
        scratch.sweep()  # temporary folders of killed processes, outside of the cache
        gone = tuple(usage for usage in gone if not (store.root / usage.item.path).exists())
    paths = {usage.item.path for usage in gone}
    return Pruned(gone=gone, left=tuple(usage for usage in usages if usage.item.path not in paths))


def faults(
    store: Store, found: CacheUsage, *, advanced: Callable[[int], None] = lambda _: None
) -> tuple[CacheFault, ...]:
    """Check everything: every hash, pack and record, and the size of every unpacked image.

    Hashes run in parallel: hashlib releases the GIL.

    :param advanced: called with the bytes read, from several threads.
    """
    usages = sorted(item_usages(found.items, found.roots), key=lambda usage: -usage.item.size)

    def check(usage: ItemUsage) -> CacheFault | None:
        try:
            what = _fault(store, usage, advanced)
        except FileNotFoundError:  # deleted in the meantime
            return None
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        return CacheFault(subject=usage, what=what) if what else None

    with ThreadPoolExecutor(cores()) as threads:
        return tuple(fault for fault in threads.map(check, usages) if fault)


def repair(
    store: Store, fault: CacheFault, found: CacheUsage, fetch: Callable[[LockedWheel], object]
) -> tuple[bool, str]:
    """Delete a damaged item, and download it again if it is a wheel that a lock names.

    The next build rebuilds a deleted layer, and replaces it in its layout.

    :returns: whether the cache is repaired, and what was done.
    """
    item = fault.subject.item
    if item.busy and item.kind == "unpacked images":
        return False, f"not changed: {item.busy}"
    aside: list[Path] = []
    with store.gate():
        _discard(store, fault.subject, aside)
    for path in aside:
        remove_tree(path)
    if (store.root / item.path).exists():
        return False, "cannot be deleted"
    wheel = found.wheels.get(item.path)
    if wheel is None:
        note = {"wheels": "; no lock names it", "bases": "; build or import it: torchkiln base"}
        return True, "deleted" + note.get(item.kind, "; will be rebuilt when needed")
    try:
        fetch(wheel)
    except KilnError as error:
        return False, f"deleted, but it cannot be downloaded again: {error.message}"
    return True, "downloaded again"


def _discard(store: Store, usage: ItemUsage, aside: list[Path]) -> None:
    """Rename an item and add it to *aside*; its records first, so that no record refers to a missing file."""
    item = usage.item
    path = store.root / item.path
    if path.parent.name == "locks":
        clear(path)  # not renamed: another process may be taking the lock
        return
    aside += store.set_aside(store.root / record for record in item.along if record.startswith("records/"))
    if item.kind == "unpacked images":
        aside += set_root_aside(store, path)
        return
    aside += store.set_aside([path])
    if item.kind in ("wheels", "partial wheels", "OS packages"):
        with contextlib.suppress(OSError):  # the folder is not empty
            path.parent.rmdir()


def _fault(store: Store, usage: ItemUsage, advanced: Callable[[int], None]) -> str:
    """The fault of an item; empty if it has none."""
    item, path = usage.item, store.root / usage.item.path
    match item.kind:
        case "layers" | "bases" | "other blobs":
            sha256 = _sha256(path, advanced)
            if sha256 != path.name:
                return f"checksum mismatch (sha256 is {sha256})"
            return next(
                filter(None, (_record_fault(store.root / name, item.size) for name in item.along)), ""
            )
        case "wheels" | "OS packages":
            sha256 = _sha256(path, advanced)
            return "" if sha256 == path.parent.name else f"checksum mismatch (sha256 is {sha256})"
        case "byte-code":
            return _pack_fault(path, advanced)
        case "unpacked images":
            record = store.record("roots", path.name)
            size, files = tree_size(path)
            if record and (size, files) != (record["bytes"], record["files"]):
                expected = f"{record['files']} files, {record['bytes']} bytes"
                return f"it has {files} files, {size} bytes; expected {expected}"
        case "index pages" | "layer texts":
            return _record_fault(path, None)
        case "leftovers" if item.path.startswith(("records/layers/", "records/bases/")):
            return "refers to a missing blob"
    return ""


def _record_fault(path: Path, size: int | None) -> str:
    try:
        record = json.loads(path.read_bytes())
    except ValueError:
        return f"{path.name}: invalid JSON"
    if size is not None and record.get("size") != size:
        return f"wrong size: its record says {record.get('size')} bytes"
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


def total(usages: Iterable[ItemUsage]) -> int:
    """Bytes of all *usages*."""
    return sum(usage.item.size for usage in usages)
