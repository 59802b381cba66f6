"""Survey → the cache without what may go; survey → faults; faults → mended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchkiln.build.worker import cores
from torchkiln.cache.policy import ItemUsage, Policy, expendable, item_usages
from torchkiln.cache.usage import CacheUsage
from torchkiln.errors import KilnError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.unpack import root_of
from torchkiln.store.file_locks import clear, in_use
from torchkiln.store.store import Store
from torchkiln.util import scratch
from torchkiln.util.files import remove_tree, tree_size
from torchkiln.wheel.bytecode import read_pack

_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """What went (or would go), and what is left of the cache."""

    gone: tuple[ItemUsage, ...]
    left: tuple[ItemUsage, ...]

    @property
    def freed(self) -> int:
        """Bytes that the disk has more of."""
        return sum(one.item.size for one in self.gone if not one.item.shared)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something in the cache that is not what its name says."""

    subject: ItemUsage
    what: str

    @property
    def tags(self) -> tuple[str, ...]:
        """Images that have the same fault, because their layout's file is this very file."""
        if not self.subject.item.shared:
            return ()
        return self.subject.users.get("tag", ("a layout that the cache does not know",))


def prune(store: Store, look: Callable[[], CacheUsage], policy: Policy, *, dry_run: bool = False) -> Pruned:
    """Delete what may go by *policy*. Builds go on meanwhile: what they claim stays.

    What goes is renamed away while no build can begin, which takes a moment, and deleted afterwards.

    :raises BuildFailed: the cache cannot be written.
    """
    with contextlib.nullcontext() if dry_run else store.gate():
        found = look()
        usages = item_usages(found.items, found.roots)
        gone = expendable(usages, policy, now=time.time())
        aside: list[Path] = []
        if not dry_run:
            for one in gone:
                _discard(store, one, aside)
    for path in aside:
        remove_tree(path)
    if not dry_run:
        scratch.sweep()  # what killed processes left outside the cache
        gone = tuple(one for one in gone if not (store.root / one.item.path).exists())
    paths = {one.item.path for one in gone}
    return Pruned(gone=gone, left=tuple(one for one in usages if one.item.path not in paths))


def faults(
    store: Store, found: CacheUsage, *, advanced: Callable[[int], None] = lambda _: None
) -> tuple[Fault, ...]:
    """Read everything anew: every hash, every pack's end, every record, every unpacked image's size.

    Both cores hash, for hashlib lets go of the interpreter.

    :param advanced: hears of the bytes read, from several threads.
    """
    usages = sorted(item_usages(found.items, found.roots), key=lambda one: -one.item.size)

    def look(one: ItemUsage) -> Fault | None:
        try:
            what = _fault(store, one, advanced)
        except FileNotFoundError:  # gone since the survey
            return None
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        return Fault(subject=one, what=what) if what else None

    with ThreadPoolExecutor(cores()) as threads:
        return tuple(fault for fault in threads.map(look, usages) if fault)


def repair(
    store: Store, fault: Fault, found: CacheUsage, fetch: Callable[[LockedWheel], object]
) -> tuple[bool, str]:
    """Take what is at fault out of the cache, and wheels that a lock names from the index again.

    Layers are not made here: the next build makes them, and replaces them in its layout.

    :returns: whether the cache is as good as before the fault, and what was done, as a phrase.
    """
    item = fault.subject.item
    if item.busy and item.kind == "unpacked images":
        return False, f"left as it is: {item.busy}"
    aside: list[Path] = []
    with store.gate():
        _discard(store, fault.subject, aside)
    for path in aside:
        remove_tree(path)
    if (store.root / item.path).exists():
        return False, "could not be deleted"
    wheel = found.wheels.get(item.path)
    if wheel is None:
        again = {"wheels": ", and no lock names it", "bases": "; build or import it: torchkiln base"}
        return True, "deleted" + again.get(item.kind, "; the next use makes it again")
    try:
        fetch(wheel)
    except KilnError as error:
        return False, f"deleted, but not to be had again: {error.message}"
    return True, "fetched again"


def _discard(store: Store, one: ItemUsage, aside: list[Path]) -> None:
    """Rename *one* out of its place into *aside*; records first, so that none points to nothing."""
    place = store.root / one.item.path
    if place.parent.name == "locks":
        clear(place)  # no rename: somebody may take the lock at this moment
        return
    aside += store.set_aside(store.root / path for path in one.item.along if path.startswith("records/"))
    if one.item.kind == "unpacked images":
        aside += _set_root_aside(store, place)
        return
    aside += store.set_aside([place])
    if one.item.kind in ("wheels", "partial wheels"):
        with contextlib.suppress(OSError):  # its neighbour is still there
            place.parent.rmdir()


def _set_root_aside(store: Store, place: Path) -> list[Path]:
    moved = store.set_aside([place])
    if any(in_use(path) for path in moved):
        for path in moved:  # a command started in it between the look and now
            path.rename(place)
        return []
    return moved


def forget_root(store: Store, manifest: Digest) -> None:
    """Delete the unpacked image *manifest*, if it is there and nothing runs in it."""
    with store.gate():
        root = root_of(store, manifest)
        if aside := _set_root_aside(store, root):
            aside += store.set_aside([store.root / "records" / "roots" / f"{root.name}.json"])
    for path in aside:
        remove_tree(path)


def _fault(store: Store, one: ItemUsage, advanced: Callable[[int], None]) -> str:
    """What is wrong with it; empty: nothing."""
    item, path = one.item, store.root / one.item.path
    match item.kind:
        case "layers" | "bases" | "other blobs":
            sha256 = _sha256(path, advanced)
            if sha256 != path.name:
                return f"its sha256 is {sha256}"
            return next(
                filter(None, (_record_fault(store.root / name, item.size) for name in item.along)), ""
            )
        case "wheels":
            sha256 = _sha256(path, advanced)
            return "" if sha256 == path.parent.name else f"its sha256 is {sha256}"
        case "byte-code":
            return _pack_fault(path, advanced)
        case "unpacked images":
            record = store.record("roots", path.name)
            size, files = tree_size(path)
            if record and (size, files) != (record["bytes"], record["files"]):
                was = f"{record['files']} files, {record['bytes']} bytes"
                return f"{files} files, {size} bytes, and it was unpacked as {was}"
        case "index pages" | "layer texts":
            return _record_fault(path, None)
        case "leftovers" if item.path.startswith(("records/layers/", "records/bases/")):
            return "names a blob that is not there"
    return ""


def _record_fault(path: Path, size: int | None) -> str:
    try:
        told = json.loads(path.read_bytes())
    except ValueError:
        return f"{path.name}: not JSON"
    if size is not None and told.get("size") != size:
        return f"its record tells {told.get('size')} bytes"
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
    """Bytes of all."""
    return sum(one.item.size for one in usages)
