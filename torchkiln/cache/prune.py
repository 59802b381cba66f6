"""Deletes the entries of the cache that nothing needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cache.usage import LEFTOVERS, CacheUsage, Entry
from torchkiln.oci.unpack import set_root_aside
from torchkiln.store.file_locks import clear
from torchkiln.store.store import Store
from torchkiln.util import scratch
from torchkiln.util.files import remove_tree


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
    """Bytes of all *entries*."""
    return sum(entry.size for entry in entries)


def freed(entries: Iterable[Entry]) -> int:
    """Bytes that the deletion of *entries* frees on the disk."""
    return sum(entry.size for entry in entries if not entry.shared)
