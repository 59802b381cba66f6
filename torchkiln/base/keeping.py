"""Provides a locked base or tools layer: from the cache, a file, an earlier rebuild, or the archive.

An archive has only the newest packages, so a base or the tools on top of it cannot be rebuilt later: the
layer is kept as a blob and locked by digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.layer import Blob
from torchkiln.model.lock import (
    LockedBase,
    LockedTools,
    artefact_fields,
    artefact_json,
    package_changes,
)
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.oci.compression import GZIP, IDENTITY
from torchkiln.oci.encode import encode
from torchkiln.oci.opening import bounded
from torchkiln.store.store import Store
from torchkiln.util import codec
from torchkiln.util.files import pretty_json
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of, read_file

SCHEMA = 1
_REBUILT = "bases"
_LIMIT = 4 << 20  # maximum bytes of a lock file, which has about 10,000
_UNPACKED = 8 << 30  # maximum bytes of a tar; the largest has half a gigabyte
_NEWER = "lock the current packages with: torchkiln lock TAG --upgrade-base"
_SAME = ("same packages, different bytes",)

Artefact = TypeVar("Artefact", LockedBase, LockedTools)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtefactSpec(Generic[Artefact]):
    """The names of one artefact, and the functions that build it and read it from a blob."""

    description: str  # "base of debian12"
    short_name: str  # "base", in messages about a file
    lock: str  # the store's lock that a build holds, "base-debian12"
    option: str  # the option that imports a file, "--base FILE"
    export: str  # the command that writes such a file, "torchkiln base export"
    kind: type[Artefact]
    make: Callable[[], Artefact]
    read: Callable[[Path, Blob, str], Artefact]  # its arguments: the file, its `Blob`, its name in messages
    # puts the blob of a locked artefact into the cache, from its packages; returns whether that was possible
    remake: Callable[[Artefact], bool]
    key: Callable[[Artefact], str]  # the key under which the cache records the rebuild of a locked artefact


def ensure(
    spec: ArtefactSpec[Artefact],
    locked: Artefact | None,
    store: Store,
    *,
    file: Path | None = None,
    locked_only: bool = False,
    fits: bool = True,
    report: Reporting = UNREPORTED,
) -> tuple[Artefact, tuple[str, ...]]:
    """The artefact, with its blob in *store*, and its package differences from *locked*.

    The sources are tried in this order: the cache, *file*, the locked packages with their effects, an earlier
    rebuild for this lock, the archive's present packages. A rebuild may differ from the lock. It is recorded
    for the lock, so that the next build is fast and uses the same artefact, until the lock changes or
    `rebuild` is called. Without *locked*, the sources are *file* and the archive.

    :param fits: whether *locked* may be used; False for tools that were built on another base.
    :raises BuildFailed: *file* is not the locked one; or the archive gives another one and *locked_only* is
        set.
    :raises ToolMissing: it must be built, and mmdebstrap or the keys are missing.
    """
    if locked is None:
        return (adopt(spec, file, store) if file else rebuild(spec, store)), ()
    if fits and store.has_blob(locked.digest, locked.size):
        return locked, ()
    if fits and file is not None:
        return adopt(spec, file, store, locked=locked), ()
    with store.lock(spec.lock, f"builds the {spec.description}"):
        if fits and store.has_blob(locked.digest, locked.size):  # built by another process
            return locked, ()
        if fits and spec.remake(locked):
            return locked, ()
        found = rebuilt(spec, locked, store)
        if found is None:
            report.say(f"the locked {spec.description} is not in the cache; building it from the archive")
            found = spec.make()
            if found.digest == locked.digest:
                return locked, ()
            store.put_record(_REBUILT, spec.key(locked), json.loads(to_json(found)))
    changes = package_changes(locked.packages, found.packages) or _SAME
    if locked_only:
        raise BuildFailed(
            f"the {spec.description} does not match the lock {locked.digest}; in the archive now:\n"
            + "\n".join(f"  {change}" for change in changes),
            hint=f"{_NEWER}; or provide the locked one with {spec.option}",
        )
    return found, changes


def rebuild(spec: ArtefactSpec[Artefact], store: Store, *, locked: Artefact | None = None) -> Artefact:
    """Build the artefact from the archive now; the result replaces *locked* on this machine."""
    with store.lock(spec.lock, f"builds the {spec.description}"):
        found = spec.make()
        if locked is not None and locked.digest != found.digest:
            store.put_record(_REBUILT, spec.key(locked), json.loads(to_json(found)))
    return found


def adopt(
    spec: ArtefactSpec[Artefact], file: Path, store: Store, *, locked: Artefact | None = None
) -> Artefact:
    """Import an artefact from *file*, a layer blob or an uncompressed tar, into the store.

    :raises BuildFailed: *file* is not the *locked* artefact, or not valid; nothing is stored.
    """
    temporary = store.temporary(spec.lock)
    try:
        if not file.is_file():  # a pipe would hang, and a device may have no end
            raise BuildFailed(f"{file}: not a regular file", hint=f"name a file that `{spec.export}` wrote")
        with file.open("rb") as stream:
            compression = GZIP if stream.read(len(GZIP.magic)) == GZIP.magic else IDENTITY
        # The tar is always compressed again, so that a file of another tool gives the locked blob, too.
        with compression.open(file) as tar:
            encoded = encode(_bounded(spec, tar, file, locked), temporary)
        if locked is not None and encoded.digest != locked.digest:
            raise BuildFailed(
                f"{file} is not the locked {spec.short_name}: expected {locked.digest}, got {encoded.digest}",
                hint=f"export the locked one on a machine that has it: {spec.export} FILE",
            )
        found = spec.read(temporary, encoded, str(file))
        store.adopt(temporary, store.blob(encoded.digest))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, OSError) and error.errno and error.filename != str(file):
            raise BuildFailed(
                f"the {spec.short_name} cannot be written to {store.root}: {os.strerror(error.errno)}",
                hint="free disk space, or set TORCHKILN_CACHE to a writable folder",
            ) from error
        raise BuildFailed(
            f"{file} cannot be read as a {spec.short_name}: {error}",
            hint=f"export it again: {spec.export} FILE",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return locked or found


def _bounded(spec: ArtefactSpec[Artefact], tar: BinaryIO, file: Path, locked: Artefact | None) -> BinaryIO:
    """*tar*; reading more bytes than the locked artefact has, or than 8 GiB without *locked*, is an error."""
    limit = locked.unpacked if locked else _UNPACKED

    def over() -> BuildFailed:
        if locked:
            return BuildFailed(
                f"{file} is not the locked {spec.short_name}: it unpacks to more than {limit} bytes",
                hint=f"export the locked one on a machine that has it: {spec.export} FILE",
            )
        return BuildFailed(f"{file} is not a {spec.short_name}: it unpacks to more than {limit >> 30} GiB")

    return bounded(tar, limit, over)


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
