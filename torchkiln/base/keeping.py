"""Provides a locked base or tools layer: from the cache, a file, an earlier rebuild, or the archive.

An archive has only the newest packages, so a base or the tools on top of it cannot be rebuilt later: the
layer is kept as a blob and locked by digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchkiln.base.sources import SNAPSHOT
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.lock import (
    LockedBase,
    LockedTools,
    artefact_fields,
    artefact_json,
    package_changes,
)
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.store.store import Store
from torchkiln.util import codec
from torchkiln.util.files import pretty_json
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of, read_file

SCHEMA = 1
_REBUILT = "bases"
_LIMIT = 4 << 20  # maximum bytes of a lock file, which has about 10,000
_UNPACKED = 8 << 30  # maximum bytes of a tar; the largest has half a gigabyte
_VAULT = "take the locked one from a vault (--vault, docs/vault.md)"
_NEWER = "lock the current packages with: torchkiln lock TAG --upgrade-base"
_SAME = ("same packages, different bytes",)

Artefact = TypeVar("Artefact", LockedBase, LockedTools)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtefactSpec(Generic[Artefact]):
    """The names of one artefact, and the functions that build it and read it from a blob."""

    description: str  # "base of debian12"
    lock: str  # the store's lock that a build holds, "base-debian12"
    kind: type[Artefact]
    make: Callable[[], Artefact]
    # Puts the blob of a locked artefact into the cache, from a vault or from its packages; if that is not
    # possible, returns the reason, which is empty for an artefact whose packages are not recorded.
    remake: Callable[[Artefact], str | None]
    key: Callable[[Artefact], str]  # the key under which the cache records the rebuild of a locked artefact


def ensure(
    spec: ArtefactSpec[Artefact],
    locked: Artefact | None,
    store: Store,
    *,
    locked_only: bool = False,
    fits: bool = True,
    report: Reporting = UNREPORTED,
) -> tuple[Artefact, tuple[str, ...]]:
    """The artefact, with its blob in *store*, and its package differences from *locked*.

    The sources are tried in this order: the cache, an earlier rebuild for this lock (unless *locked_only*), a
    vault, the locked packages with their effects, the archive's present packages. A rebuild may differ from
    the lock. It is recorded for the lock, so that the next build is fast and uses the same one, until the
    lock or the settings change, or `rebuild` is called. Without *locked*, the present packages are used.

    :param fits: whether *locked* may be used; False for tools that were built on another base.
    :raises BuildFailed: the locked one cannot be had, and *locked_only* is set.
    :raises ToolMissing: it must be built, and mmdebstrap or the keys are missing.
    """
    if locked is None:
        return rebuild(spec, store), ()
    if fits and store.has_blob(locked.digest, locked.size):
        return locked, ()
    with store.lock(spec.lock, f"builds the {spec.description}"):
        if fits and store.has_blob(locked.digest, locked.size):  # built by another process
            return locked, ()
        found = rebuilt(spec, locked, store)
        if fits and (found is None or locked_only):
            if (lacking := spec.remake(locked)) is None:
                return locked, ()
            if lacking and locked_only:
                raise BuildFailed(lacking, hint=f"{_VAULT}; or set another mirror or {SNAPSHOT}; or {_NEWER}")
            if lacking:
                report.say(lacking)
        if found is None:
            report.say(f"building the {spec.description} from the present packages of the archive")
            found = spec.make()
            if found.digest == locked.digest:
                return locked, ()
            store.put_record(_REBUILT, spec.key(locked), json.loads(to_json(found)))
    changes = package_changes(locked.packages, found.packages) or _SAME
    if locked_only:
        raise BuildFailed(
            f"the {spec.description} does not match the lock {locked.digest}; in the archive now:\n"
            + "\n".join(f"  {change}" for change in changes),
            hint=f"{_VAULT}; or {_NEWER}",
        )
    return found, changes


def rebuild(spec: ArtefactSpec[Artefact], store: Store, *, locked: Artefact | None = None) -> Artefact:
    """Build the artefact from the archive now; the result replaces *locked* on this machine."""
    with store.lock(spec.lock, f"builds the {spec.description}"):
        found = spec.make()
        if locked is not None and locked.digest != found.digest:
            store.put_record(_REBUILT, spec.key(locked), json.loads(to_json(found)))
    return found


def to_json(found: LockedBase | LockedTools) -> bytes:
    """*found* as the bytes of its lock file."""
    return pretty_json({"schema": SCHEMA, **artefact_json(found)})


def from_json(kind: type[Artefact], data: bytes, *, where: str) -> Artefact:
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
    fields = {name: field for name, field in value.items() if name != "schema"}
    return codec.typed(kind, artefact_fields(fields))


def read_lock(kind: type[Artefact], path: Path) -> Artefact | None:
    """The lock at *path*; None if there is none.

    :raises ConfigError: the lock is invalid.
    """
    try:
        data = read_file(path, _LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=f"restore it: git checkout -- {path}") from error
    return from_json(kind, data, where=str(path))


@cache
def _schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a lock file: that of the data class *name*, with the required key `schema`."""
    found: dict[str, Any] = shipped("lock")["$defs"][name]
    return {
        **found,
        "required": ["schema", *found["required"]],
        "properties": {"schema": {"const": SCHEMA}, **found["properties"]},
    }


def rebuilt(spec: ArtefactSpec[Artefact], locked: Artefact, store: Store) -> Artefact | None:
    """An earlier rebuild for the lock *locked*; None: *store* has none."""
    record = store.record(_REBUILT, spec.key(locked))
    if record is None:
        return None
    try:
        found = from_json(spec.kind, json.dumps(record).encode(), where="a record of the cache")
    except ConfigError:  # written by another version of torchkiln
        return None
    return found if store.has_blob(found.digest, found.size) else None
