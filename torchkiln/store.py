"""The cache on disk: everything in it is named by its content and is whole or absent.

    blobs/sha256/<hex>            layer, config and manifest blobs, read-only
    wheels/<hex>/<file name>      wheels by their own sha256
    records/<kind>/<key>.json     small facts by a content key (which layer a wheel gave ...)
    locks/<name>                  one file lock a piece of work, so that nothing is done twice
    tmp/                          work in progress; files of dead processes are swept

A file reaches its name only by `os.replace`, after its digest was checked by whoever made it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from torchkiln.errors import BuildFailed
from torchkiln.files import write_atomic
from torchkiln.nouns import Digest, LockedWheel, parse_digest


class Store:
    """One cache folder, shared by any number of processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def blob(self, digest: Digest) -> Path:
        """Where the blob *digest* is, or would be."""
        return self.root / "blobs" / "sha256" / parse_digest(digest).removeprefix("sha256:")

    def has_blob(self, digest: Digest, size: int) -> bool:
        """Whether the blob is there with *size* bytes (its digest was checked when it came in)."""
        return _size(self.blob(digest)) == size

    def wheel(self, wheel: LockedWheel) -> Path:
        """Where the wheel is, or would be."""
        return self.root / "wheels" / wheel.sha256 / wheel.filename

    def has_wheel(self, wheel: LockedWheel) -> bool:
        """Whether the wheel is there with its full size (checked when it came in)."""
        return _size(self.wheel(wheel)) == wheel.size

    def adopt(self, temporary: Path, place: Path) -> Path:
        """Move a finished, checked temporary file to its *place*, read-only; atomic."""
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o444)
        os.replace(temporary, place)
        return place

    def temporary(self, stem: str) -> Path:
        """A fresh path under tmp/, on the same file system as every place; names its process."""
        folder = self.root / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{os.getpid()}-{secrets.token_hex(4)}-{stem}"

    def sweep(self) -> int:
        """Delete what dead processes left in tmp/; returns how many files."""
        swept = 0
        for path in (self.root / "tmp").glob("*"):
            pid = path.name.partition("-")[0]
            if pid.isdigit() and not _alive(int(pid)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
                swept += 1
        return swept

    def record(self, kind: str, key: str) -> dict[str, Any] | None:
        """The record of *key*, or None; an unreadable one counts as absent."""
        try:
            found = json.loads((self.root / "records" / kind / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep *value* under *key*; atomic."""
        write_atomic(
            self.root / "records" / kind / f"{key}.json",
            json.dumps(value, sort_keys=True, separators=(",", ":")).encode(),
        )

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock *name*: a kernel lock, so a dead process holds none."""
        folder = self.root / "locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BuildFailed(
                f"the cache {self.root} cannot be written: {error.strerror}",
                hint="set TORCHKILN_CACHE to a folder that can",
            ) from error
        with FileLock(folder / name):
            yield


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
