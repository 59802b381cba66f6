"""Provides a locked base: from the cache, a vault, its packages, an earlier rebuild, or the archive.

`tools` provides layers of tools by the same functions. A lock is ``images/base-<os>/base.json``, or
``<tools>.json``. An archive has only the newest packages, so a rebuild can differ from the lock.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchkiln.base.archive import folder_of, read_committed
from torchkiln.base.mmdebstrap import build
from torchkiln.base.recipe import SNAPSHOT, BaseRecipe, key_of, recipe
from torchkiln.base.remake import remade
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.lock import LockedBase, LockedTools, artefact_fields, artefact_json, package_changes
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.store.store import Store
from torchkiln.util import codec
from torchkiln.util.files import pretty_json, write_atomic
from torchkiln.util.places import IMAGES
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of

SCHEMA = 1
_REBUILT = "bases"
_LIMIT = 4 << 20  # maximum bytes of a lock file, which has about 10,000
_VAULT = "take the locked one from a vault (--vault, docs/vault.md)"
_NEWER = "lock the current packages with: torchkiln lock TAG --upgrade-base"
_SAME = ("same packages, different bytes",)

Artefact = TypeVar("Artefact", LockedBase, LockedTools)


def lock_path(images: Path, os_name: str, name: str = "base") -> Path:
    """The path below *images* of the lock of a base, or of the tools *name*.

    :param os_name: "debian12", of another platform "debian12-arm64".
    """
    return images / f"base-{os_name}" / f"{name}.json"


def to_json(found: LockedBase | LockedTools) -> bytes:
    """*found* as the bytes of its lock file."""
    return pretty_json({"schema": SCHEMA, **artefact_json(found)})


def from_json(data: bytes, kind: type[Artefact], *, where: str = "base.json") -> Artefact:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is not a valid lock of that kind; the message names *where*.
    """
    hint = f"restore it: git checkout -- {where}"
    try:
        value = json_of(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if faults := sentences(value, _schema(kind.__name__), where):
        raise ConfigError.of(faults, hint=hint)
    return codec.typed(kind, artefact_fields({name: value[name] for name in value if name != "schema"}))


@cache
def _schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a lock file: that of the data class *name*, with the required key `schema`."""
    found: dict[str, Any] = shipped("lock")["$defs"][name]
    properties = {"schema": {"const": SCHEMA}, **found["properties"]}
    return {**found, "required": ["schema", *found["required"]], "properties": properties}


def read(path: Path, kind: type[Artefact]) -> Artefact | None:
    """The lock at *path*; None if there is none.

    :raises ConfigError: the lock is invalid.
    """
    data = read_committed(path, _LIMIT)
    return None if data is None else from_json(data, kind, where=str(path))


def read_lock(images: Path, os_name: str) -> LockedBase | None:
    """The committed lock of the base of *os_name*; None if there is none.

    :raises ConfigError: the lock is invalid.
    """
    return read(lock_path(images, os_name), LockedBase)


def native_base(images: Path | None, os_name: str) -> LockedBase:
    """The base of *os_name* for the default platform, whose Python makes the byte-code of other platforms.

    :param images: a folder of locks that is asked before torchkiln's own.
    :raises BuildFailed: it is not locked.
    """
    found = next(filter(None, (read_lock(folder, os_name) for folder in (images, IMAGES) if folder)), None)
    if found is None:
        what = f"the base of {os_name} for {DEFAULT_PLATFORM}, which other platforms need, is not locked"
        raise BuildFailed(what, hint=f"run: torchkiln base build --os {os_name} --lock")
    return found


def write_lock(images: Path, found: LockedBase | LockedTools) -> Path:
    """Write the lock of a base or of tools; returns its path."""
    name = [found.name] if isinstance(found, LockedTools) else []
    path = lock_path(images, folder_of(found).removeprefix("base-"), *name)
    write_atomic(path, to_json(found))
    return path


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtefactSpec(Generic[Artefact]):
    """The names of one artefact, and how it is made."""

    description: str  # "base of debian12"
    lock: str  # the store's lock that a build holds, "base-debian12"
    kind: type[Artefact]
    make: Callable[[], Artefact]  # from the archive's present packages
    remake: Callable[[Artefact], str | None]  # the locked one: see `remake.remade`
    inputs: tuple[str, ...]  # with the lock, they decide whether an earlier rebuild is used

    def record(self, locked: Artefact) -> tuple[str, str]:
        """The kind and the key of the cache's record of the rebuild for *locked*."""
        return _REBUILT, hashlib.sha256("\n".join((*self.inputs, locked.digest)).encode()).hexdigest()

    def rebuilt(self, locked: Artefact, store: Store) -> Artefact | None:
        """An earlier rebuild for the lock *locked*; None: *store* has none."""
        if (record := store.record(*self.record(locked))) is None:
            return None
        try:
            found = from_json(json.dumps(record).encode(), self.kind, where="a record of the cache")
        except ConfigError:  # written by another version of torchkiln
            return None
        return found if store.has_blob(found.digest, found.size) else None

    def made(self, locked: Artefact | None, store: Store) -> Artefact:
        """The artefact of the present packages, recorded as the rebuild for *locked*."""
        found = self.make()
        if locked is not None and locked.digest != found.digest:
            store.put_record(*self.record(locked), json.loads(to_json(found)))
        return found

    def rebuild(self, locked: Artefact | None, store: Store) -> Artefact:
        """`made`, while no other process does the same."""
        with store.lock(self.lock, f"builds the {self.description}"):
            return self.made(locked, store)

    def ensure(
        self, locked: Artefact, store: Store, say: Callable[[str], None], *, locked_only: bool, fits: bool
    ) -> tuple[Artefact, tuple[str, ...]]:
        """The artefact, with its blob in *store*, and its package differences from *locked*.

        The sources are tried in this order: the cache, an earlier rebuild for this lock (unless
        *locked_only*), a vault, the locked packages with their effects, the archive's present packages. A
        rebuild may differ from the lock. It is recorded for the lock, so that the next build is fast and uses
        the same one, until the lock or the settings change, or `rebuild` is called.

        :param fits: whether *locked* may be used; False for tools that were built on another base.
        :raises BuildFailed: the locked one cannot be had, and *locked_only* is set.
        :raises ToolMissing: it must be built, and mmdebstrap or the keys are missing.
        """
        if fits and store.has_blob(locked.digest, locked.size):
            return locked, ()
        with store.lock(self.lock, f"builds the {self.description}"):
            if fits and store.has_blob(locked.digest, locked.size):  # built by another process
                return locked, ()
            found = self.rebuilt(locked, store)
            if fits and (found is None or locked_only):
                if (lacking := self.remake(locked)) is None:
                    return locked, ()
                if lacking and locked_only:
                    hint = f"{_VAULT}; or set another mirror or {SNAPSHOT}; or {_NEWER}"
                    raise BuildFailed(lacking, hint=hint)
                if lacking:
                    say(lacking)
            if found is None:
                say(f"building the {self.description} from the present packages of the archive")
                found = self.made(locked, store)
        if found.digest == locked.digest:
            return locked, ()
        changes = package_changes(locked.packages, found.packages) or _SAME
        if locked_only:
            raise BuildFailed(
                f"the {self.description} does not match the lock {locked.digest}; in the archive now:\n"
                + "\n".join(f"  {change}" for change in changes),
                hint=f"{_VAULT}; or {_NEWER}",
            )
        return found, changes


def ensure(
    locked: LockedBase,
    store: Store,
    *,
    locked_only: bool = False,
    environ: Mapping[str, str] | None = None,
    report: Reporting = UNREPORTED,
) -> tuple[LockedBase, tuple[str, ...]]:
    """The base to build on, and its differences from *locked*: see `ArtefactSpec.ensure`."""
    spec = _spec(locked.os, store, os.environ if environ is None else environ, report, locked.platform)
    locked_only = locked_only or locked.platform != DEFAULT_PLATFORM  # only `lock` makes those bases
    return spec.ensure(locked, store, report.say, locked_only=locked_only, fits=True)


def present(locked: LockedBase, store: Store, *, environ: Mapping[str, str]) -> LockedBase:
    """The base that `ensure` returns for *locked*, if *store* has its blob; else *locked*. Makes nothing."""
    if store.has_blob(locked.digest, locked.size):
        return locked
    spec = _spec(locked.os, store, environ, UNREPORTED, locked.platform)
    return spec.rebuilt(locked, store) or locked


def rebuild(
    wanted: BaseRecipe,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedBase | None = None,
    report: Reporting = UNREPORTED,
) -> LockedBase:
    """Build the base from the archive now; the result replaces *locked* on this machine."""
    return _spec(wanted.os, store, environ, report, DEFAULT_PLATFORM).rebuild(locked, store)


def _spec(
    os_name: str, store: Store, environ: Mapping[str, str], report: Reporting, platform: str
) -> ArtefactSpec[LockedBase]:
    wanted, suffix = recipe(os_name), PLATFORMS[platform].suffix
    return ArtefactSpec(
        description=f"base of {wanted.os}{suffix}",
        lock=f"base-{wanted.os}{suffix}",
        kind=LockedBase,
        make=lambda: build(wanted, store, environ=environ, report=report),
        remake=lambda locked: remade(locked, locked, store, environ=environ, report=report),
        inputs=(wanted.key(), *key_of(wanted, environ)),  # another source may still have the locked packages
    )
