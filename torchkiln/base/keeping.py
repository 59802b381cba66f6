"""A locked artefact of an archive → at hand: from the cache, a file, what stood in, or made again.

An archive keeps only its newest packages, so what was made of them (the base of an OS, the tools on top of
one) cannot be made again for ever: it is kept as a blob, and locked by digest.
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
from torchkiln.model.lock import LockedBase, LockedTools, OsPackage, artefact_fields, artefact_json
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
_LIMIT = 4 << 20  # bytes of a lock's file; it has ten thousand
_UNPACKED = 8 << 30  # bytes of any artefact's tar; ours have half a gigabyte
_NEWER = "make the present archive the lock's base with: torchkiln lock --upgrade-base"
_SAME = ("the same packages, other bytes",)

Artefact = TypeVar("Artefact", LockedBase, LockedTools)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way(Generic[Artefact]):
    """How one artefact is called, made, and read out of a blob."""

    what: str  # "base of debian12"
    noun: str  # "base": as messages about a file call it
    lock: str  # the store's, while it is made: "base-debian12"
    option: str  # by which a file is handed over: "--base FILE"
    export: str  # what writes such a file: "torchkiln base export"
    kind: type[Artefact]
    make: Callable[[], Artefact]
    read: Callable[[Path, Blob, str], Artefact]  # blob, what it is, what messages call it
    key: Callable[[Artefact], str]  # of the record of what stands in for a locked one


def ensure(
    way: Way[Artefact],
    locked: Artefact | None,
    store: Store,
    *,
    file: Path | None = None,
    locked_only: bool = False,
    fits: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Artefact, tuple[str, ...]]:
    """The artefact, its blob being in *store*; and the packages in which it differs from *locked*.

    In this order: the cache by digest; *file*; what an earlier build kept for this lock; the archive. What
    the archive gives today may differ from the lock. It is then kept on this machine for the lock, so that
    the next build is the same and quick; it goes out of use with the lock, or by `rebuild`. Without
    *locked* the archive is asked always.

    :param fits: whether the locked one may be used; not, where that on which it was made has moved.
    :raises BuildFailed: *file* is not the locked one; or the archive gives another than the locked and
        *locked_only* is set.
    :raises ToolMissing: it must be made and mmdebstrap or the keys are missing.
    """
    if locked is None:
        return (adopt(way, file, store) if file else rebuild(way, store)), ()
    if fits and store.has_blob(locked.digest, locked.size):
        return locked, ()
    if fits and file is not None:
        return adopt(way, file, store, locked=locked), ()
    with store.lock(way.lock, f"builds the {way.what}"):
        if fits and store.has_blob(locked.digest, locked.size):  # another process was at it
            return locked, ()
        found = _rebuilt(way, locked, store)
        if found is None:
            say(f"the locked {way.what} is not in the cache; building it from the archive")
            found = way.make()
            if found.digest == locked.digest:
                return locked, ()
            store.put_record(_REBUILT, way.key(locked), json.loads(to_json(found)))
    changes = moved(locked.packages, found.packages) or _SAME
    if locked_only:
        raise BuildFailed(
            f"the {way.what} is locked as {locked.digest}, and the archive now gives another one:\n"
            + "\n".join(f"  {change}" for change in changes),
            hint=f"hand over the locked one with {way.option}, or {_NEWER}",
        )
    return found, changes


def rebuild(way: Way[Artefact], store: Store, *, locked: Artefact | None = None) -> Artefact:
    """Ask the archive now, whatever the cache holds; from here on the result stands in for *locked*."""
    with store.lock(way.lock, f"builds the {way.what}"):
        found = way.make()
        if locked is not None and locked.digest != found.digest:
            store.put_record(_REBUILT, way.key(locked), json.loads(to_json(found)))
    return found


def adopt(way: Way[Artefact], file: Path, store: Store, *, locked: Artefact | None = None) -> Artefact:
    """Take an artefact from *file*, a layer blob or its bare tar, into the store.

    :raises BuildFailed: it is not the *locked* one, or none at all; nothing is kept.
    """
    temporary = store.temporary(way.lock)
    try:
        if not file.is_file():  # a pipe would hang, and a device may have no end
            raise BuildFailed(f"{file} is no file", hint=f"name what `{way.export}` wrote")
        with file.open("rb") as stream:
            compression = GZIP if stream.read(len(GZIP.magic)) == GZIP.magic else IDENTITY
        # Encoded anew in any case: what another tool compressed has the same tar and gives the locked blob.
        with compression.open(file) as tar:
            encoded = encode(_bounded(way, tar, file, locked), temporary)
        if locked is not None and encoded.digest != locked.digest:
            raise BuildFailed(
                f"{file} is not the locked {way.noun}: {encoded.digest}, locked is {locked.digest}",
                hint=f"export the right one where it was locked: {way.export} FILE",
            )
        found = way.read(temporary, encoded, str(file))
        store.adopt(temporary, store.blob(encoded.digest))
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, OSError) and error.errno and error.filename != str(file):
            raise BuildFailed(
                f"the {way.noun} cannot be put into the cache {store.root}: {os.strerror(error.errno)}",
                hint="make room, or set TORCHKILN_CACHE to a folder that can be written",
            ) from error
        raise BuildFailed(
            f"{file} cannot be read as a {way.noun}: {error}", hint=f"export it again: {way.export} FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return locked or found


def _bounded(way: Way[Artefact], tar: BinaryIO, file: Path, locked: Artefact | None) -> BinaryIO:
    """*tar*, no longer than the locked one's, or than any: a small file may unpack to much."""
    limit = locked.unpacked if locked else _UNPACKED

    def over() -> BuildFailed:
        if locked:
            return BuildFailed(
                f"{file} is not the locked {way.noun}: it unpacks to more than the lock's {limit} bytes",
                hint=f"export the right one where it was locked: {way.export} FILE",
            )
        return BuildFailed(f"{file} is no {way.noun}: it unpacks to more than {limit >> 30} GiB")

    return bounded(tar, limit, over)


def moved(before: tuple[OsPackage, ...], after: tuple[OsPackage, ...]) -> tuple[str, ...]:
    """What differs between two package lists, a phrase each, by name: "openssl 3.0.18 → 3.0.19". Pure."""
    old = {package.name: package.version for package in before}
    new = {package.name: package.version for package in after}
    return tuple(
        f"{name} {old.get(name, '(new)')} → {new.get(name, '(gone)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


# --- the file form ----------------------------------------------------------------------------------


def to_json(found: LockedBase | LockedTools) -> bytes:
    """The committed form."""
    return pretty_json({"schema": SCHEMA, **artefact_json(found)})


def from_json(kind: type[Artefact], data: bytes, *, where: str) -> Artefact:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is no lock of that kind, or of another schema; names *where*.
    """
    hint = f"restore it: git checkout -- {where}"
    try:
        value = json_of(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if wrong := sentences(value, _schema(kind.__name__), where):
        raise ConfigError.of(wrong, hint=hint)
    fields = {key: told for key, told in value.items() if key != "schema"}
    return codec.typed(kind, artefact_fields(fields))


def read_lock(kind: type[Artefact], path: Path) -> Artefact | None:
    """The lock at *path*; None when there is none yet.

    :raises ConfigError: it is unsound.
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
    """A lock's schema for the data class *name*, with the schema number that its own file begins with."""
    found: dict[str, Any] = shipped("lock")["$defs"][name]
    return {
        **found,
        "required": ["schema", *found["required"]],
        "properties": {"schema": {"const": SCHEMA}, **found["properties"]},
    }


def _rebuilt(way: Way[Artefact], locked: Artefact, store: Store) -> Artefact | None:
    record = store.record(_REBUILT, way.key(locked))
    if record is None:
        return None
    try:
        found = from_json(way.kind, json.dumps(record).encode(), where="a record of the cache")
    except ConfigError:  # written by another release of ours
        return None
    return found if store.has_blob(found.digest, found.size) else None
