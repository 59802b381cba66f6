"""The cache on disk: everything in it is named by its content and is whole or absent.

    blobs/sha256/<hex>            layer, config and manifest blobs, read-only
    wheels/<hex>/<file name>      wheels by their own sha256
    records/<kind>/<key>.json     small facts by a content key (which layer a wheel gave ...)
    locks/<name>                  one lock a piece of work, so that nothing is done twice
    claims/<name>                 what each running build needs: `cache prune` leaves it
    tmp/                          work in progress; what dead processes left is swept
    keys/                         this machine's own key: `machine_key`

Only its user can write it. What several users share is another folder, from which wheels and blobs are copied
when their SHA-256 is right (`shared_cache`).

A file reaches its name only by `os.replace`, after its digest was checked by whoever made it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.lock import LockedWheel
from torchkiln.store import shared as shared_cache
from torchkiln.store.file_locks import Holder, acquire, clear, hold, holder
from torchkiln.util import scratch
from torchkiln.util.files import private_folder, remove_tree
from torchkiln.util.ownership import require_private

_GATE = "gate"  # held for a moment by who claims, and by who takes away what is unclaimed
_ORPHANED = 3600.0  # seconds after which a half-written file without an owner's name is nobody's
_DAY = 86400.0
_TEMPORARY = re.compile(r"\.?(\d+\.[0-9a-f]{8})-")

# A process has one name in a cache for as long as it lives, whatever comes and goes of its Store objects.
_tokens: dict[tuple[Path, int], str] = {}
_guard = threading.Lock()


class Store:
    """One user's cache folder, shared by any number of processes.

    :param on_wait: is told for whom this process waits, when that takes more than a moment.
    :param shared: a folder of several users, from which blobs and wheels are copied.
    :raises ConfigError: other users could change what is in *root*.
    """

    def __init__(
        self,
        root: Path,
        *,
        on_wait: Callable[[Holder], None] = lambda _: None,
        shared: Path | None = None,
    ) -> None:
        _demand_own(root)
        self.root = root
        self.shared = shared or shared_cache.shared_folder()
        self._on_wait = on_wait

    def blob(self, digest: Digest) -> Path:
        """Where the blob *digest* is, or would be."""
        return self.root / "blobs" / "sha256" / parse_digest(digest).removeprefix("sha256:")

    def has_blob(self, digest: Digest, size: int) -> bool:
        """Whether the blob is there with *size* bytes (its digest was checked when it came in)."""
        place = self.blob(digest)
        return _size(place) == size or self._take(place, place.name, size)

    def wheel(self, wheel: LockedWheel) -> Path:
        """Where the wheel is, or would be."""
        return self.root / "wheels" / wheel.sha256 / wheel.filename

    def has_wheel(self, wheel: LockedWheel) -> bool:
        """Whether the wheel is there with its full size, where that is known (checked when it came in)."""
        place = self.wheel(wheel)
        size = _size(place)
        return (size == wheel.size if wheel.size else size > 0) or self._take(place, wheel.sha256, wheel.size)

    def part(self, wheel: LockedWheel) -> Path:
        """Where the wheel grows while it arrives; whoever comes next goes on from what is there."""
        place = self.wheel(wheel)
        return place.with_name(place.name + ".part")

    def adopt(self, temporary: Path, place: Path) -> Path:
        """Move a finished, checked temporary file to its *place*, read-only; atomic."""
        private_folder(place.parent)
        temporary.chmod(0o444)
        os.replace(temporary, place)
        if self.shared:
            shared_cache.offer(self.shared, place.relative_to(self.root), place)
        return place

    def _take(self, place: Path, sha256: str, size: int) -> bool:
        """Whether the shared folder has what belongs at *place*; then it is there now, as our own copy."""
        if self.shared is None:
            return False
        temporary = self.temporary("shared")
        try:
            with self.writable():
                if not shared_cache.take(self.shared, place.relative_to(self.root), sha256, size, temporary):
                    return False
                self.adopt(temporary, place)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def record(self, kind: str, key: str) -> dict[str, Any] | None:
        """The record of *key*, or None; an unreadable one counts as absent."""
        try:
            found = json.loads((self.root / "records" / kind / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def records(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every readable record of *kind* with its key."""
        for path in sorted((self.root / "records" / kind).glob("[!.]*.json")):
            if (found := self.record(kind, path.stem)) is not None:
                yield path.stem, found

    def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep *value* under *key*; atomic. By way of tmp/, where what a killed process left is swept."""
        temporary = self.temporary("record")
        try:
            temporary.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
            self.adopt(temporary, self.root / "records" / kind / f"{key}.json")
        finally:
            temporary.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Note that *path* was used now. Times of access are no help: many file systems keep none.

        Not for blobs: a layout elsewhere knows its copy by the time of the original.
        """
        with contextlib.suppress(OSError):  # not there, or another user's: then it only looks older
            os.utime(path)

    # --- who does what ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, name: str, what: str = "", *, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock *name*: a kernel lock, so a dead process holds none.

        :param what: what for, as those are told who wait: "makes layer torch 2.7.1".
        :param check: is called while waiting; what it raises ends the wait.
        :raises BuildFailed: the cache cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with self.writable():
                stack.enter_context(
                    hold(
                        self._folder("locks") / name,
                        what,
                        keep=name == _GATE,  # so that it can be had when the disk is full
                        on_wait=self._on_wait,
                        check=check,
                    )
                )
            yield

    def locked(self, name: str) -> Holder | None:
        """Who holds the lock *name* now."""
        return holder(self.root / "locks" / name)

    @contextlib.contextmanager
    def claim(self, what: str, needs: Collection[str]) -> Iterator[None]:
        """Let nobody take away *needs* (paths below the root) meanwhile, nor blobs without a record.

        :raises BuildFailed: the cache cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with self.lock(_GATE, "looks for what may go"), self.writable():
                name = f"{os.getpid()}-{secrets.token_hex(4)}"
                stack.enter_context(hold(self._folder("claims") / name, what, needs=sorted(needs)))
            yield

    def claims(self) -> tuple[Holder, ...]:
        """What is claimed now; claims of dead processes are deleted."""
        found = []
        for path in sorted((self.root / "claims").glob("*")):
            if alive := holder(path):
                found.append(alive)
            else:
                clear(path)
        return tuple(found)

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        """Keep new claims waiting: what is unclaimed stays so meanwhile. For moments only."""
        with self.lock(_GATE, "looks for what may go"):
            yield

    # --- what comes and goes ----------------------------------------------------------------------

    def temporary(self, stem: str) -> Path:
        """A fresh path under tmp/, on the same file system as every place; names its process.

        :raises BuildFailed: the cache cannot be written.
        """
        with self.writable():
            return self._folder("tmp") / f"{self._token()}-{secrets.token_hex(4)}-{stem}"

    def sweep(self) -> int:
        """Delete what dead processes left; returns how many files and folders."""
        swept = scratch.sweep()
        for path in self.dead():
            remove_tree(path)
            swept += 1
        self.claims()
        for path in (self.root / "locks").glob("process-*"):
            if age(path) > _ORPHANED:
                clear(path)
        return swept

    def dead(self) -> list[Path]:
        """What in tmp/ nobody works on any more.

        A process that lives holds a lock of its own. That is seen from other containers too, and after a
        restart of the machine, where a pid would be somebody else's.
        """
        found = []
        for path in (self.root / "tmp").glob("*"):
            if (ours := _TEMPORARY.match(path.name)) is None:
                continue
            lock = self.root / "locks" / f"process-{ours[1]}"
            # A lock file that somebody deleted by hand proves nothing; after a day it does.
            if holder(lock) is None and (lock.exists() or age(path) > _DAY):
                found.append(path)
        return found

    def set_aside(self, paths: Iterable[Path]) -> list[Path]:
        """Take *paths* out of their places, a rename each; returns what is to be deleted, at leisure."""
        aside = []
        for path in paths:
            try:
                os.replace(path, place := self.temporary("aside"))
            except FileNotFoundError:
                continue
            except (OSError, BuildFailed):  # on a full disk even a name may want room
                aside.append(path)
            else:
                aside.append(place)
        return aside

    def _token(self) -> str:
        key = (self.root, os.getpid())
        with _guard:
            if key not in _tokens:
                token = f"{os.getpid()}.{secrets.token_hex(4)}"
                acquire(self._folder("locks") / f"process-{token}", "works in tmp/")  # open until we end
                _tokens[key] = token
            return _tokens[key]

    def private(self, name: str) -> Path:
        """The folder *name* of the cache, which no other user can enter.

        :raises OSError: it cannot be made so.
        """
        folder = self._folder(name)
        folder.chmod(0o700)
        return folder

    def _folder(self, name: str) -> Path:
        return private_folder(self.root / name)

    @contextlib.contextmanager
    def writable(self) -> Iterator[None]:
        """An OSError inside is the cache's: it says so, and what to do."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            make_room = "make room (torchkiln cache prune), or "
            raise BuildFailed(
                f"the cache {self.root} cannot be written: {error.strerror}",
                hint=(make_room if full else "") + "set TORCHKILN_CACHE to a folder that can",
            ) from error


def _size(path: Path) -> int:
    """Bytes of a plain file; -1 where there is none: a link is none."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


# What each user of a shared machine could change if these were open to others.
_FOLDERS = (
    *("blobs", "blobs/sha256", "wheels", "records", "locks", "claims", "tmp", "keys"),
    *("toolkits", "bytecode", "interpreters", "rootfs", "pytest"),
)


def _demand_own(root: Path) -> None:
    require_private(
        root,
        "the cache",
        (*_FOLDERS, *(f"records/{kind}" for kind in _names(root / "records"))),
        hint="run chmod -R go-w on it, or set TORCHKILN_CACHE to a folder of your own; a folder that"
        f" several users share is named by {shared_cache.VARIABLE} (docs/cache.md)",
    )


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def age(path: Path) -> float:
    """Seconds since *path* was written; 0 if it is not there."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0
