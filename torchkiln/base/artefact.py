"""Provides the base of an OS, locked in ``images/base-<os>/base.json``, by means of `keeping`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torchkiln.base import keeping
from torchkiln.base.keeping import to_json
from torchkiln.base.mmdebstrap import build
from torchkiln.base.recipe import BaseRecipe, recipe
from torchkiln.base.remake import remade
from torchkiln.base.sources import key_of
from torchkiln.model.lock import LockedBase, package_changes
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic

__all__ = [
    "ensure",
    "from_json",
    "lock_path",
    "package_changes",
    "read_lock",
    "rebuild",
    "to_json",
    "write_lock",
]


def lock_path(images: Path, os_name: str) -> Path:
    """The path of the base's lock below *images*."""
    return images / f"base-{os_name}" / "base.json"


def from_json(data: bytes, *, where: str = "base.json") -> LockedBase:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is not a valid lock of a base; the message names *where*.
    """
    return keeping.from_json(LockedBase, data, where=where)


def read_lock(images: Path, os_name: str) -> LockedBase | None:
    """The committed lock of the base of *os_name*; None if there is none.

    :raises ConfigError: the lock is invalid.
    """
    return keeping.read_lock(LockedBase, lock_path(images, os_name))


def write_lock(images: Path, base: LockedBase) -> Path:
    """Write *base* as the lock of its OS."""
    path = lock_path(images, base.os)
    write_atomic(path, to_json(base))
    return path


def ensure(
    locked: LockedBase | None,
    store: Store,
    *,
    os_name: str,
    locked_only: bool = False,
    environ: Mapping[str, str] | None = None,
    report: Reporting = UNREPORTED,
) -> tuple[LockedBase, tuple[str, ...]]:
    """The base to build on, and its differences from *locked*: see `keeping.ensure`."""
    spec = _spec(recipe(os_name), store, os.environ if environ is None else environ, report)
    return keeping.ensure(spec, locked, store, locked_only=locked_only, report=report)


def present(locked: LockedBase, store: Store, *, environ: Mapping[str, str]) -> LockedBase:
    """The base that `ensure` returns for *locked*, if *store* has its blob; else *locked*. Makes nothing."""
    if store.has_blob(locked.digest, locked.size):
        return locked
    return keeping.rebuilt(_spec(recipe(locked.os), store, environ, UNREPORTED), locked, store) or locked


def rebuild(
    wanted: BaseRecipe,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedBase | None = None,
    report: Reporting = UNREPORTED,
) -> LockedBase:
    """Build the base from the archive now; the result replaces *locked* on this machine."""
    return keeping.rebuild(_spec(wanted, store, environ, report), store, locked=locked)


def _spec(
    wanted: BaseRecipe, store: Store, environ: Mapping[str, str], report: Reporting
) -> keeping.ArtefactSpec[LockedBase]:
    def key(locked: LockedBase) -> str:
        """It depends on the sources, because another one may still have the locked packages."""
        parts = (wanted.key(), locked.digest, *key_of(wanted, environ))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    return keeping.ArtefactSpec(
        description=f"base of {wanted.os}",
        lock=f"base-{wanted.os}",
        kind=LockedBase,
        make=lambda: build(wanted, store, environ=environ, report=report),
        remake=lambda locked: remade(locked, locked, store, environ=environ, report=report),
        key=key,
    )
