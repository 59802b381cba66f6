"""Provides the cache on disk: files named by their content, each complete or absent.

    blobs/sha256/<hex>            layer, config and manifest blobs, read-only
    wheels/<hex>/<file name>      wheels by their own sha256
    debs/<hex>/<file name>        packages of an OS by their own sha256
    records/<kind>/<key>.json     small results by a content key (the layer of a wheel ...)
    locks/<name>                  a lock for each piece of work, so that no work is done twice
    claims/<name>                 the files that a running build needs: `cache prune` keeps them
    tmp/                          work in progress; files of dead processes are deleted
    keys/                         this machine's own key: see `attest/machine_key.py`

Only its owner can write to the cache. Several users can share another folder, from which wheels and blobs are
copied if their SHA-256 is right (`store/shared.py`).

A file gets its name by `os.replace`, after the code that made it has checked its digest.
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
from torchkiln.util.files import folder_at, named, private_folder, remove_tree
from torchkiln.util.ownership import require_private

_GATE = "gate"  # the lock held while a process claims files, or removes unclaimed files
_ORPHANED = 3600.0  # seconds after which an unheld process lock is deleted
_DAY = 86400.0
_TEMPORARY = re.compile(r"\.?(\d+\.[0-9a-f]{8})-")

# The name of this process in a cache; all Store objects of the process use the same name.
_tokens: dict[tuple[Path, int], str] = {}
_guard = threading.Lock()


class Store:
    """One user's cache folder, shared by any number of processes.

    :param on_wait: called with the holder of a lock that this process waits for.
    :param shared: a folder of several users, from which blobs and wheels are copied.
    :raises ConfigError: other users could change the contents of *root*.
    """

    def __init__(
        self, root: Path, *, on_wait: Callable[[Holder], None] = lambda _: None, shared: Path | None = None
    ) -> None:
        _require_private(root)
        self.root, self._named = named(root), root
        self.shared = shared or shared_cache.shared_folder()
        self._on_wait = on_wait

    def blob(self, digest: Digest) -> Path:
        """The path of the blob *digest*, which need not exist."""
        return self.root / "blobs" / "sha256" / parse_digest(digest).removeprefix("sha256:")

    def has_blob(self, digest: Digest, size: int) -> bool:
        """Whether the blob exists with *size* bytes (its digest was checked when it was added)."""
        place = self.blob(digest)
        return _size(place) == size or self._take(place, place.name, size)

    def wheel(self, wheel: LockedWheel) -> Path:
        """The path of the wheel, which need not exist."""
        return self.root / "wheels" / wheel.sha256 / wheel.filename

    def has_wheel(self, wheel: LockedWheel) -> bool:
        """Whether the wheel exists, with its size if known (its hash was checked when it was added)."""
        place = self.wheel(wheel)
        size = _size(place)
        return (size == wheel.size if wheel.size else size > 0) or self._take(place, wheel.sha256, wheel.size)

    def part(self, wheel: LockedWheel) -> Path:
        """The path of the partly downloaded wheel; a later download resumes it."""
        place = self.wheel(wheel)
        return place.with_name(place.name + ".part")

    def adopt(self, temporary: Path, place: Path) -> Path:
        """Move a complete, verified temporary file to *place*, read-only; atomic."""
        temporary.chmod(0o444)
        with folder_at(place.parent, make=0o700) as folder:
            os.replace(temporary, folder / place.name)
        if self.shared:
            shared_cache.offer(self.shared, place.relative_to(self.root), place)
        return place

    def _take(self, place: Path, sha256: str, size: int) -> bool:
        """Copy the file of *place* from the shared folder; returns whether that succeeded."""
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
        """The record of *key*; None: it does not exist or cannot be read."""
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
        """Store *value* under *key*; atomic. The temporary file is in tmp/, where `sweep` finds it."""
        temporary = self.temporary("record")
        try:
            temporary.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
            self.adopt(temporary, self.root / "records" / kind / f"{key}.json")
        finally:
            temporary.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Set the modification time of *path* to now, because many file systems record no access times.

        Do not use it for blobs: a layout that has a copy of a blob compares the modification times of both.
        """
        with contextlib.suppress(OSError):  # without it the file only seems older
            os.utime(path)

    # --- locks and claims -------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, name: str, what: str = "", *, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock *name*; the kernel releases it if the process dies.

        :param what: the purpose, for processes that wait: "makes layer torch 2.7.1".
        :param check: called while waiting; an exception ends the wait.
        :raises BuildFailed: the cache cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with self.writable():
                stack.enter_context(
                    hold(
                        self._folder("locks") / name,
                        what,
                        keep=name == _GATE,  # so that it can be locked on a full disk
                        on_wait=self._on_wait,
                        check=check,
                    )
                )
            yield

    def locked(self, name: str) -> Holder | None:
        """The current holder of the lock *name*."""
        return holder(self.root / "locks" / name)

    @contextlib.contextmanager
    def claim(self, what: str, needs: Collection[str]) -> Iterator[None]:
        """Protect *needs* (paths below the root), and blobs without a record, from `cache prune`.

        :raises BuildFailed: the cache cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with self.gate(), self.writable():
                name = f"{os.getpid()}-{secrets.token_hex(4)}"
                stack.enter_context(hold(self._folder("claims") / name, what, needs=sorted(needs)))
            yield

    def claims(self) -> tuple[Holder, ...]:
        """The present claims; those of dead processes are deleted."""
        found = []
        for path in sorted((self.root / "claims").glob("*")):
            if alive := holder(path):
                found.append(alive)
            else:
                clear(path)
        return tuple(found)

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        """Prevent new claims during the `with` block, which should be short."""
        with self.lock(_GATE, "checks the claims on files"):
            yield

    # --- temporary files --------------------------------------------------------------------------

    def temporary(self, stem: str) -> Path:
        """A new path in tmp/, on the file system of the cache, with the name of this process.

        :raises BuildFailed: the cache cannot be written.
        """
        with self.writable():
            return self._folder("tmp") / f"{self._token()}-{secrets.token_hex(4)}-{stem}"

    def sweep(self) -> int:
        """Delete the temporary files of dead processes; return the number of files and folders."""
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
        """The files in tmp/ whose process has ended.

        A running process holds a lock, which other containers see, and which does not survive a reboot. A pid
        could belong to another process after a reboot.
        """
        found = []
        for path in (self.root / "tmp").glob("*"):
            if (match := _TEMPORARY.match(path.name)) is None:
                continue
            lock = self.root / "locks" / f"process-{match[1]}"
            # The user may have deleted the lock file of a running process, so its files are kept for a day.
            if holder(lock) is None and (lock.exists() or age(path) > _DAY):
                found.append(path)
        return found

    def set_aside(self, paths: Iterable[Path]) -> list[Path]:
        """Rename *paths* into tmp/; returns the paths that the caller has to delete."""
        aside = []
        for path in paths:
            try:
                os.replace(path, place := self.temporary("aside"))
                aside.append(place)
            except FileNotFoundError:
                continue
            except (OSError, BuildFailed):  # on a full disk even a rename may fail
                aside.append(path)
        return aside

    def _token(self) -> str:
        key = (self.root, os.getpid())
        with _guard:
            if key not in _tokens:
                token = f"{os.getpid()}.{secrets.token_hex(4)}"
                lock = self._folder("locks") / f"process-{token}"
                _require_private(self.root)  # again: if it was missing, another user may have created it
                acquire(lock, "works in tmp/")  # until this process ends
                _tokens[key] = token
            return _tokens[key]

    def private(self, name: str) -> Path:
        """Create the folder *name* of the cache with mode 0700.

        :raises OSError: it cannot be created.
        """
        folder = self._folder(name)
        folder.chmod(0o700)
        return folder

    def _folder(self, name: str) -> Path:
        return private_folder(self.root / name)

    @contextlib.contextmanager
    def writable(self) -> Iterator[None]:
        """Convert an OSError in the `with` block to a `BuildFailed` that names the cache."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            free = "free space (torchkiln cache prune), or " if full else ""
            raise BuildFailed(
                f"cannot write to the cache {self._named}: {error.strerror}",
                hint=f"{free}set TORCHKILN_CACHE to a writable folder",
            ) from error


def _size(path: Path) -> int:
    """Bytes of a regular file; -1: it does not exist, or is a link or another type."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


# Folders that other users must not be able to change.
_FOLDERS = (
    *("blobs", "blobs/sha256", "wheels", "records", "locks", "claims", "tmp", "keys"),
    *("toolkits", "debs", "bytecode", "interpreters", "rootfs", "erofs", "pytest"),
)


def _require_private(root: Path) -> None:
    require_private(
        root,
        "the cache",
        (*_FOLDERS, *(f"records/{kind.name}" for kind in (root / "records").glob("*"))),
        hint="run chmod -R go-w on it, or set TORCHKILN_CACHE to a folder of your own; to share a cache"
        f" between users, set {shared_cache.VARIABLE} (docs/cache.md)",
    )


def age(path: Path) -> float:
    """Seconds since *path* was modified; 0: it does not exist."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def cache_root() -> Path:
    """The cache folder: $TORCHKILN_CACHE, else the platform's cache folder for torchkiln."""
    if set_by_user := os.environ.get("TORCHKILN_CACHE"):
        return Path(set_by_user).absolute()
    import platformdirs  # missing in a bundle of smoke tests, which sets the variable

    return Path(platformdirs.user_cache_dir("torchkiln"))
