"""LockedCell ⇄ its two files: lock.json, which we read, and requirements.txt, which pip reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from torchkiln.errors import Stale
from torchkiln.nouns import (
    Build,
    Cell,
    Digest,
    LockedBase,
    LockedCell,
    LockedLayer,
    LockedWheel,
    Note,
    OsPackage,
    Resolution,
    Source,
    Status,
    parse_digest,
)

SCHEMA = 1
_RELOCK = "run: torchkiln lock"


def to_json(locked: LockedCell) -> bytes:
    """The committed form: one wheel, one OS package and one layer a line, for the sake of diffs."""
    document = _document(locked)
    head = {"schema": SCHEMA, "digest": _digest(document)}
    lines = [f'  "{key}": {_compact(value)}' for key, value in head.items()]
    for key, value in document.items():
        if key == "schema":
            continue
        lines.append(f'  "{key}": {_field(key, value)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def from_json(data: bytes, *, where: str = "lock.json") -> LockedCell:
    """The inverse of `to_json`.

    :raises Stale: *data* is no lock, one of another schema, or was changed by hand; names *where*.
    """
    try:
        document = json.loads(data)
        if document.get("schema") != SCHEMA:
            raise Stale(f"{where}: schema {document.get('schema')}, not {SCHEMA}", hint=_RELOCK)
        if _digest(document) != document.get("digest"):
            raise Stale(
                f"{where}: changed by hand, its digest no longer fits",
                hint="restore it from git, or make it anew: torchkiln lock",
            )
        return _locked(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Stale(f"{where} is not a lock: {error!r}", hint=_RELOCK) from error


def lock_digest(locked: LockedCell) -> Digest:
    """The digest of all that *locked* asks for; recorded layers, which follow from it, do not count."""
    return _digest(_document(locked))


def requirements_txt(locked: LockedCell) -> bytes:
    """The wheels of *locked* for ``pip install --require-hashes --no-deps``; a package a line."""
    cell = locked.resolution.cell
    head = (
        f"# torch {cell.torch}, CUDA {cell.cuda}, {cell.os}, Python {cell.python}; made by torchkiln lock\n"
        "# pip install --require-hashes --no-deps -r requirements.txt\n"
    )
    if any(wheel.index is Source.PYTORCH for wheel in locked.wheels):
        head += "# versions with a + are on PyTorch's own index: name it to pip as an extra index\n"
    return (
        head
        + "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in locked.wheels)
    ).encode()


def _document(locked: LockedCell) -> dict[str, Any]:
    resolution = asdict(locked.resolution)
    base = asdict(locked.base) | {"packages": {one.name: one.version for one in locked.base.packages}}
    return {
        "schema": SCHEMA,
        "inputs": locked.inputs,
        "as_of": locked.as_of,
        "epoch": locked.epoch,
        # Derived, for the reader: which indexes had to be configured when this was locked.
        "indexes": sorted({wheel.index.value for wheel in locked.wheels}),
        "resolution": json.loads(json.dumps(resolution)),
        "wheels": [asdict(wheel) for wheel in locked.wheels],
        "base": base,
        "layers": [asdict(layer) for layer in locked.layers],
    }


def _digest(document: Mapping[str, Any]) -> Digest:
    counted = {key: value for key, value in document.items() if key not in ("digest", "layers")}
    canonical = json.dumps(counted, sort_keys=True, separators=(",", ":")).encode()
    return parse_digest("sha256:" + hashlib.sha256(canonical).hexdigest())


def _field(key: str, value: Any) -> str:
    if key in ("wheels", "layers"):
        return _block("[", (_compact(one) for one in value), "]", 2)
    if key in ("resolution", "base"):
        inner = (
            f'"{name}": '
            + (
                _block("{", (f"{_compact(k)}: {_compact(v)}" for k, v in field.items()), "}", 4)
                if name == "packages"
                else _block("[", (_compact(one) for one in field), "]", 4)
                if name in ("limits", "constraints", "alternatives")
                else _compact(field)
            )
            for name, field in value.items()
        )
        return _block("{", inner, "}", 2)
    return _compact(value)


def _block(opening: str, items: Iterable[str], closing: str, indent: int) -> str:
    lines = [" " * (indent + 2) + item for item in items]
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * indent}{closing}" if lines else opening + closing


def _compact(value: Any) -> str:
    return json.dumps(value)


def _locked(document: Mapping[str, Any]) -> LockedCell:
    base = document["base"]
    return LockedCell(
        resolution=_resolution(document["resolution"]),
        wheels=tuple(LockedWheel(**{**one, "index": Source(one["index"])}) for one in document["wheels"]),
        base=LockedBase(
            **{**base, "packages": tuple(OsPackage(name=k, version=v) for k, v in base["packages"].items())}
        ),
        as_of=document["as_of"],
        epoch=document["epoch"],
        inputs=parse_digest(document["inputs"]),
        layers=tuple(LockedLayer(**one) for one in document["layers"]),
    )


def _resolution(value: Mapping[str, Any]) -> Resolution:
    return Resolution(
        cell=Cell(**value["cell"]),
        status=Status(value["status"]),
        reason=value["reason"],
        build=None if value["build"] is None else _build(value["build"]),
        alternatives=tuple(_build(one) for one in value["alternatives"]),
        min_driver=value["min_driver"],
        full_driver=value["full_driver"],
        requirements=tuple(value["requirements"]),
        constraints=tuple(Note(**one) for one in value["constraints"]),
        limits=tuple(Note(**one) for one in value["limits"]),
        nearest=tuple((torch, cuda) for torch, cuda in value["nearest"]),
        lockable=value["lockable"],
    )


def _build(value: Mapping[str, Any]) -> Build:
    return Build(**{**value, "source": Source(value["source"]), "archs": tuple(value["archs"])})
