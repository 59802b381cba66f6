"""lock of a base → the base at hand: from the cache, from a file, or built again.

An archive keeps only its newest packages, so a base cannot be rebuilt for ever: it is kept as a blob, and
its lock is the committed file ``images/base-<os>/base.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from torchkiln.base.contents import inspect, locked_base
from torchkiln.base.mmdebstrap import build
from torchkiln.base.recipe import BaseRecipe, recipe
from torchkiln.base.sources import variables
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.files import pretty_json, write_atomic
from torchkiln.nouns import LockedBase, OsPackage
from torchkiln.oci.encode import encode
from torchkiln.oci.gunzip import open_gzip
from torchkiln.schema import sentences, shipped
from torchkiln.store import Store
from torchkiln.strict import json_of, read_file

SCHEMA = 1
_STAND_INS = "bases"
_LIMIT = 4 << 20  # bytes of base.json; it has ten thousand
_UNPACKED = 8 << 30  # bytes of any base's tar; ours have half a gigabyte
_NEWER = "make the present archive the lock's base with: torchkiln lock --upgrade-base"


def lock_path(images: Path, os_name: str) -> Path:
    """Where under *images* the base's lock stands."""
    return images / f"base-{os_name}" / "base.json"


def to_json(base: LockedBase) -> bytes:
    """The committed form; packages as name → version."""
    return pretty_json({"schema": SCHEMA, **base.plain()})


def from_json(data: bytes, *, where: str = "base.json") -> LockedBase:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is no lock of a base, or of another schema; names *where*.
    """
    hint = f"restore it: git checkout -- {where}"
    try:
        value = json_of(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if wrong := sentences(value, _schema(), where):
        raise ConfigError.of(wrong, hint=hint)
    fields = {key: told for key, told in value.items() if key != "schema"}
    packages = tuple(OsPackage(name=name, version=text) for name, text in value["packages"].items())
    return LockedBase(**fields | {"packages": packages})


def read_lock(images: Path, os_name: str) -> LockedBase | None:
    """The committed lock of *os_name*'s base; None when there is none yet."""
    path = lock_path(images, os_name)
    try:
        data = read_file(path, _LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=f"restore it: git checkout -- {path}") from error
    return from_json(data, where=str(path))


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
    """The base to build on, its blob being in *store*; and the packages in which it differs from *locked*.

    In this order: the cache by digest; *base_file*; the base that once stood in for this lock; the archive.
    What the archive gives today may differ from the lock. It is then kept as the lock's stand-in on this
    machine, so that the next build is the same and quick; it goes out of use with the lock, or by `rebuild`.
    Without *locked* the archive is asked always.

    :raises BuildFailed: *base_file* is not the locked base; or the archive gives another one than the locked
        and *locked_only* is set.
    :raises ToolMissing: it must be built and mmdebstrap or the keys are missing.
    """
    environ = os.environ if environ is None else environ
    wanted = recipe(os_name)
    if locked is None:
        return (
            adopt(base_file, store, os_name=os_name)
            if base_file
            else rebuild(wanted, store, environ=environ, say=say)
        ), ()
    if store.has_blob(locked.digest, locked.size):
        return locked, ()
    if base_file is not None:
        return adopt(base_file, store, os_name=os_name, locked=locked), ()
    with store.lock(f"base-{os_name}", f"builds the base of {os_name}"):
        if store.has_blob(locked.digest, locked.size):  # another process was at it
            return locked, ()
        base = _stand_in(wanted, locked, store, environ)
        if base is None:
            say(f"the locked base of {os_name} is not in the cache; building it from the archive")
            base = build(wanted, store, environ=environ, say=say)
            if base.digest == locked.digest:
                return locked, ()
            store.put_record(_STAND_INS, _key(wanted, locked, environ), json.loads(to_json(base)))
    changes = moved(locked.packages, base.packages)
    if locked_only:
        raise BuildFailed(
            f"the base of {os_name} is locked as {locked.digest}, and the archive now gives another one:\n"
            + "\n".join(f"  {change}" for change in changes or ("the same packages, other bytes",)),
            hint=f"hand over the locked base with --base FILE, or {_NEWER}",
        )
    return base, changes or ("the same packages, other bytes",)


def rebuild(
    wanted: BaseRecipe,
    store: Store,
    *,
    environ: Mapping[str, str],
    locked: LockedBase | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> LockedBase:
    """Ask the archive now, whatever the cache holds; from here on the result stands in for *locked*."""
    with store.lock(f"base-{wanted.os}", f"builds the base of {wanted.os}"):
        base = build(wanted, store, environ=environ, say=say)
        if locked is not None and locked.digest != base.digest:
            store.put_record(_STAND_INS, _key(wanted, locked, environ), json.loads(to_json(base)))
    return base


def adopt(file: Path, store: Store, *, os_name: str, locked: LockedBase | None = None) -> LockedBase:
    """Take a base from *file*, a layer blob or its bare tar, into the store.

    :raises BuildFailed: it is not the *locked* one, or no base at all; nothing is kept.
    """
    temporary = store.temporary(f"base-{os_name}")
    try:
        if not file.is_file():  # a pipe would hang, and a device may have no end
            raise BuildFailed(f"{file} is no file", hint="name what `torchkiln base export` wrote")
        with file.open("rb") as stream:
            gzipped = stream.read(2) == b"\x1f\x8b"
        # Encoded anew in any case: what another tool compressed has the same tar and gives the locked blob.
        with open_gzip(file) if gzipped else file.open("rb") as tar:
            encoded = encode(_bounded(tar, file, locked), temporary)
        if locked is not None and encoded.digest != locked.digest:
            raise BuildFailed(
                f"{file} is not the locked base: {encoded.digest}, locked is {locked.digest}",
                hint="export the right one where it was locked: torchkiln base export FILE",
            )
        contents = inspect(temporary, name=str(file))
        store.adopt(temporary, store.blob(encoded.digest))
    except (OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno and error.filename != str(file):
            raise BuildFailed(
                f"the base cannot be put into the cache {store.root}: {os.strerror(error.errno)}",
                hint="make room, or set TORCHKILN_CACHE to a folder that can be written",
            ) from error
        raise BuildFailed(
            f"{file} cannot be read as a base: {error}", hint="export it again: torchkiln base export FILE"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return locked or locked_base(os_name, encoded, contents)


def _bounded(tar: BinaryIO, file: Path, locked: LockedBase | None) -> BinaryIO:
    """*tar*, no longer than the locked one's, or than any base: a small file may unpack to much."""
    limit = locked.unpacked if locked else _UNPACKED

    def over() -> BuildFailed:
        if locked:
            return BuildFailed(
                f"{file} is not the locked base: it unpacks to more than the lock's {limit} bytes",
                hint="export the right one where it was locked: torchkiln base export FILE",
            )
        return BuildFailed(f"{file} is no base: it unpacks to more than {limit >> 30} GiB")

    return cast(BinaryIO, _Bounded(tar, limit, over))


class _Bounded:
    """A stream that ends in an error behind so many bytes."""

    def __init__(self, stream: BinaryIO, limit: int, over: Callable[[], BuildFailed]) -> None:
        self._stream, self._left, self._over = stream, limit, over

    def read(self, size: int) -> bytes:
        """As a file."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise self._over()
        return data


def moved(before: tuple[OsPackage, ...], after: tuple[OsPackage, ...]) -> tuple[str, ...]:
    """What differs between two package lists, a phrase each, by name: "openssl 3.0.18 → 3.0.19". Pure."""
    old = {package.name: package.version for package in before}
    new = {package.name: package.version for package in after}
    return tuple(
        f"{name} {old.get(name, '(new)')} → {new.get(name, '(gone)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


@cache
def _schema() -> dict[str, Any]:
    """The base's part of a lock's schema, with the number that the file of its own begins with."""
    lock = shipped("lock")
    part = lock["properties"]["base"]
    return {
        **part,
        "$defs": lock["$defs"],
        "required": ["schema", *part["required"]],
        "properties": {"schema": {"const": SCHEMA}, **part["properties"]},
    }


def _stand_in(
    wanted: BaseRecipe, locked: LockedBase, store: Store, environ: Mapping[str, str]
) -> LockedBase | None:
    record = store.record(_STAND_INS, _key(wanted, locked, environ))
    if record is None:
        return None
    try:
        base = from_json(json.dumps(record).encode())
    except ConfigError:  # written by another release of ours
        return None
    return base if store.has_blob(base.digest, base.size) else None


def _key(wanted: BaseRecipe, locked: LockedBase, environ: Mapping[str, str]) -> str:
    """With another mirror the locked base may be had after all, so it is worth asking again."""
    asked = (wanted.key(), locked.digest, *(environ.get(name, "") for name in variables(wanted)))
    return hashlib.sha256("\n".join(asked).encode()).hexdigest()
