"""lock of a base → the base at hand, as `keeping` has it; its lock is ``images/base-<os>/base.json``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from torchkiln.base import keeping
from torchkiln.base.contents import inspect, locked_base
from torchkiln.base.keeping import moved, to_json
from torchkiln.base.mmdebstrap import build
from torchkiln.base.recipe import BaseRecipe, recipe
from torchkiln.base.sources import variables
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedBase
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic

__all__ = [
    "adopt",
    "ensure",
    "from_json",
    "lock_path",
    "moved",
    "read_lock",
    "rebuild",
    "to_json",
    "write_lock",
]


def lock_path(images: Path, os_name: str) -> Path:
    """Where under *images* the base's lock stands."""
    return images / f"base-{os_name}" / "base.json"


def from_json(data: bytes, *, where: str = "base.json") -> LockedBase:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is no lock of a base, or of another schema; names *where*.
    """
    return keeping.from_json(LockedBase, data, where=where)


def read_lock(images: Path, os_name: str) -> LockedBase | None:
    """The committed lock of *os_name*'s base; None when there is none yet.

    :raises ConfigError: it is unsound.
    """
    return keeping.read_lock(LockedBase, lock_path(images, os_name))


def write_lock(images: Path, base: LockedBase) -> Path:
    """Make *base* the lock of its OS."""
    path = lock_path(images, base.os)
    write_atomic(path, to_json(base))
    return path


def ensure(
    locked: LockedBase | None,
    store: Store,
    *,
    os_name: str,
    base_file: Path | None = None,
    locked_only: bool = False,
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[LockedBase, tuple[str, ...]]:
    """The base to build on, and in what it differs from *locked*: see `keeping.ensure`."""
    way = _way(recipe(os_name), store, os.environ if environ is None else environ, say)
    return keeping.ensure(way, locked, store, file=base_file, locked_only=locked_only, say=say)


def rebuild(
    wanted: BaseRecipe,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedBase | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> LockedBase:
    """Ask the archive now, whatever the cache holds; from here on the result stands in for *locked*."""
    return keeping.rebuild(_way(wanted, store, environ, say), store, locked=locked)


def adopt(file: Path, store: Store, *, os_name: str, locked: LockedBase | None = None) -> LockedBase:
    """Take a base from *file*, a layer blob or its bare tar, into the store.

    :raises BuildFailed: it is not the *locked* one, or no base at all; nothing is kept.
    """
    return keeping.adopt(_way(recipe(os_name), store, {}, lambda _: None), file, store, locked=locked)


def _way(
    wanted: BaseRecipe, store: Store, environ: Mapping[str, str], say: Callable[[str], None]
) -> keeping.Way[LockedBase]:
    def read(blob: Path, encoded: Blob, name: str) -> LockedBase:
        return locked_base(wanted.os, encoded, inspect(blob, name=name))

    def key(locked: LockedBase) -> str:
        """With another mirror the locked base may be had after all, so it is worth asking again."""
        asked = (wanted.key(), locked.digest, *(environ.get(name, "") for name in variables(wanted)))
        return hashlib.sha256("\n".join(asked).encode()).hexdigest()

    return keeping.Way(
        what=f"base of {wanted.os}",
        noun="base",
        lock=f"base-{wanted.os}",
        option="--base FILE",
        export="torchkiln base export",
        kind=LockedBase,
        make=lambda: build(wanted, store, environ=environ, say=say),
        read=read,
        key=key,
    )
