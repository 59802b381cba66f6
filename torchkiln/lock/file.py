"""LockedCell ⇄ its two files: lock.json, which we read, and requirements.txt, which pip reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from torchkiln.errors import Stale
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.model import fields
from torchkiln.model.cell import Limit, Resolution, Source
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.lock import LockedArchive, LockedCell, artefact_fields, artefact_json
from torchkiln.util import codec
from torchkiln.util.schema import sentences, shipped, shown
from torchkiln.util.strict_json import json_of

SCHEMA = 2
_WHEEL_FILE = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}\.whl")
_PLAIN = re.compile(r"[A-Za-z0-9.]{1,20}")
_NAME = re.compile(r"[a-z0-9-]{1,60}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Envelope:
    """What a lock's file has beside the fields of its LockedCell."""

    schema: Literal[2]
    digest: fields.Sha256Digest
    indexes: Annotated[tuple[Source, ...], Meta(extra_json_schema={"uniqueItems": True})]
    seal: fields.Sha256Digest


_ENVELOPE = ("schema", "digest", "indexes", "seal")
_ORDER = (
    *("schema", "digest", "inputs", "as_of", "epoch", "indexes", "untrusted", "by_record", "resolution"),
    *("wheels", "components", "archives", "base", "tools", "layers", "seal"),
)


def to_json(locked: LockedCell) -> bytes:
    """The committed form: one wheel, one OS package and one layer a line, for the sake of diffs."""
    document = _document(locked)
    document["digest"] = _digest(document)
    document["seal"] = _seal(document)
    document = {key: document[key] for key in _ORDER if key in document}
    lines = [f'  "{key}": {_field(key, value)}' for key, value in document.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def from_json(data: bytes, *, where: str = "lock.json") -> LockedCell:
    """The inverse of `to_json`.

    :raises Stale: *data* is no lock, one of another schema, or changed since it was written; names *where*.
    """
    document = parse(data, where=where)
    if reason := broken_seal(document):
        raise Stale(f"{where}: {reason}", hint=how_to_mend(document, where))
    return locked_of(document)


def parse(data: bytes, *, where: str) -> dict[str, Any]:
    """*data* as a document that fits lock.schema.json and is at one with itself; its seal is not looked at.

    :raises Stale: it is none; every fault, with its place in the file.
    """
    try:
        document = json_of(data)
    except ValueError as error:
        raise Stale(f"{where}: {error}", hint=how_to_mend(None, where)) from None
    schema = document.get("schema", "none") if isinstance(document, dict) else SCHEMA
    if schema != SCHEMA:
        raise Stale(f"{where}: schema {shown(schema)}, not {SCHEMA}", hint=how_to_mend(document, where))
    if isinstance(document, dict) and "seal" not in document:
        old = "it has no seal, by which a change would be noticed: it was written by an older torchkiln"
        raise Stale(f"{where}: {old}, or cut", hint=how_to_mend(document, where))
    wrong = sentences(document, shipped("lock"), where) or [
        f"{where}: {fault}" for fault in _inner_faults(document)
    ]
    if wrong:
        raise Stale("\n".join(wrong), hint=how_to_mend(document, where))
    found: dict[str, Any] = document
    return found


def broken_seal(document: Mapping[str, Any]) -> str:
    """What the seal of *document* tells: a sentence; empty when it is whole."""
    if document["seal"] == _seal(document):
        return ""
    if _digest(document) == document["digest"]:
        part = "its recorded layers, or its seal, are"
    elif document["seal"] == _seal({**document, "digest": _digest(document)}):
        part = "its digest is"
    else:
        part = "something beside its recorded layers is"
    return f"edited by hand or merged badly: {part} no longer what `lock` wrote"


def how_to_mend(document: object, where: str) -> str:
    """The way out for whoever has a broken lock at *where*; tells the cell as far as *document* does."""
    cell = document.get("resolution", {}) if isinstance(document, dict) else {}
    cell = cell.get("cell", {}) if isinstance(cell, dict) else {}
    options = [
        f" --{name} {value}"
        for name in ("torch", "cuda", "flavor", "os")
        if isinstance(cell, dict) and isinstance(value := cell.get(name), str) and _PLAIN.fullmatch(value)
    ]
    beside = cell.get("components") if isinstance(cell, dict) else None
    if isinstance(beside, list) and all(isinstance(one, str) and _NAME.fullmatch(one) for one in beside):
        options.append(f" --with {','.join(beside)}")
    if isinstance(document, dict) and "by_record" in document:
        options.append(" --public-record")
    return (
        f"restore it: git checkout -- {where}"
        f"; or make it anew, with the newest packages: torchkiln lock{''.join(options) or ' --all'}"
    )


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
    # Derived, for the reader: which indexes had to be configured when this was locked.
    indexes = sorted({wheel.index.value for wheel in locked.wheels})
    values: dict[str, Any] = codec.plain(locked) | {"resolution": plain(locked.resolution)}
    values["base"] = artefact_json(locked.base)
    if locked.tools:
        values["tools"] = artefact_json(locked.tools)
    values |= {"schema": SCHEMA, "indexes": indexes}
    return {key: values[key] for key in _ORDER if key in values}


def plain(resolution: Resolution) -> dict[str, Any]:
    """What *resolution* decides, as plain values: ids and values, no sentences."""
    values: dict[str, Any] = codec.plain(resolution)
    if "toolkit" in values:
        values["toolkit"] = dict(sorted(values["toolkit"].items()))
    return values | {"limits": [str(limit) for limit in resolution.limits]}


def _digest(document: Mapping[str, Any]) -> Digest:
    """Of what is asked for. Images bear it, so what follows from it, layers and seal, does not count."""
    return _sha256({key: value for key, value in document.items() if key not in ("digest", "layers", "seal")})


def _seal(document: Mapping[str, Any]) -> Digest:
    """Of all that stands in the file, however it is laid out."""
    return _sha256({key: value for key, value in document.items() if key != "seal"})


def _sha256(document: Mapping[str, Any]) -> Digest:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return parse_digest("sha256:" + hashlib.sha256(canonical).hexdigest())


def _inner_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Where *document*, which fits its schema, is at odds with itself."""
    seen: set[str] = set()
    for number, wheel in enumerate(document["wheels"]):
        at, name = f"wheels[{number}]", wheel["name"]
        if not _WHEEL_FILE.fullmatch(wheel["filename"]):
            yield f"{at}.filename: {shown(wheel['filename'])} is not the name of a wheel's file"
            continue
        file, version, *_ = wheel["filename"].split("-")
        if re.sub(r"[_.]+", "-", file).lower() != name or not _same_version(version, wheel["version"]):
            yield f"{at}: {wheel['filename']} is no wheel of {name} {wheel['version']}"
        if name in seen:
            yield f"{at}: {name} stands twice"
        seen.add(name)
    unmeasured = [(wheel["name"], wheel["index"]) for wheel in document["wheels"] if "size" not in wheel]
    if unmeasured != [(name, Source.PYTORCH.value) for name in document.get("by_record", ())]:
        yield "by_record: not the wheels of PyTorch's index that have no size"
    yield from _component_faults(document, seen)
    if document["indexes"] != sorted({wheel["index"] for wheel in document["wheels"]}):
        yield "indexes: not those that the wheels name"
    if document["resolution"]["build"]["cudnn"] is None:
        yield "resolution.build.cudnn: must be text, not nothing; the tag names it"
    yield from _faults_of_archives(document)
    cell, base = document["resolution"]["cell"], document["base"]
    if base["os"] != cell["os"] or not base["python"].startswith(cell["python"] + "."):
        of = f"{base['os']} with Python {base['python']}"
        yield f"base: it is {of}, the cell asks for {cell['os']} with Python {cell['python']}"
    tools, wanted = document.get("tools"), document["resolution"].get("tools")
    if (found := tools["name"] if tools else None) != wanted:
        yield f"tools: they are {found or 'not there'}, the cell asks for {wanted or 'none'}"
    elif tools and (tools["os"], tools["base"]) != (base["os"], base["digest"]):
        yield "tools: they were made on another base"


def _faults_of_archives(document: Mapping[str, Any]) -> Iterator[str]:
    """They are those that the resolution means, each once."""
    archives = codec.typed(tuple[LockedArchive, ...], document.get("archives", []))
    if len({one.component for one in archives}) < len(archives):
        yield "archives: a component stands twice"
    for number, one in enumerate(archives):
        if not one.filename.startswith(f"{one.component}-") or f"-{one.version}-" not in one.filename:
            yield f"archives[{number}]: {one.filename} is no archive of {one.component} {one.version}"
    meant = document["resolution"].get("toolkit", {}).get("archives")
    if (digest_of(archives) if archives else None) != meant:
        yield "archives: not those that resolution.toolkit means"


def _component_faults(document: Mapping[str, Any], wheels: set[str]) -> Iterator[str]:
    """Between what the cell names, what its resolution tells of it, and what is locked of it."""
    resolution, locked = document["resolution"], document.get("components", [])
    asked = resolution["cell"].get("components", [])
    names = [[one["name"] for one in some] for some in (resolution.get("components", []), locked)]
    if names != [asked, asked]:
        yield "components: the cell, its resolution and the lock name different ones"
    asked_for = [one["program"]["sha256"] for one in resolution.get("components", []) if "program" in one]
    if asked_for != [one["program"]["sha256"] for one in locked if "program" in one]:
        yield "components: a program is locked by another sha256 than the resolution has"
    taken: set[str] = set()
    for one in locked:
        if lost := sorted(set(one["wheels"]) - wheels):
            yield f"components: {one['name']} names {', '.join(lost)}, which is no wheel of this lock"
        if twice := sorted(set(one["wheels"]) & taken):
            yield f"components: {', '.join(twice)} belongs to two"
        taken |= set(one["wheels"])


def _same_version(one: str, other: str) -> bool:
    """By spelling, else by meaning: 1.0+a_b of a file's name is 1.0+a.b."""
    if one == other:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one.replace("_", "-")) == Version(other)
    except InvalidVersion:
        return False


def _field(key: str, value: Any) -> str:
    if key in ("wheels", "components", "archives", "layers"):
        return _block("[", (_compact(one) for one in value), "]", 2)
    if key in ("resolution", "base", "tools"):
        inner = (
            f'"{name}": '
            + (
                _block("{", (f"{_compact(k)}: {_compact(v)}" for k, v in field.items()), "}", 4)
                if name == "packages"
                else _block("[", (_compact(one) for one in field), "]", 4)
                if name in ("limits", "constraints", "components")
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


def locked_of(document: Mapping[str, Any]) -> LockedCell:
    """The data class of a document from `parse`."""
    resolution = document["resolution"]
    limits = [codec.plain(Limit.parse(text)) for text in resolution["limits"]]
    values = _without(document, *_ENVELOPE)
    values["layers"] = [{"title": one["title"], "blob": _without(one, "title")} for one in document["layers"]]
    artefacts = {key: artefact_fields(values[key]) for key in ("base", "tools") if key in values}
    return codec.typed(LockedCell, {**values, **artefacts, "resolution": {**resolution, "limits": limits}})


def _without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}


def schema() -> dict[str, Any]:
    """The JSON Schema of a lock's file, of `LockedCell` and what `to_json` adds."""
    found = codec.schema_of(LockedCell)
    properties = {**found["properties"], **codec.schema_of(_Envelope)["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"images/<tag>/lock.json, schema {SCHEMA}: every byte of one image by sha256",
        **found,
        "required": sorted({*found["required"], *_ENVELOPE}, key=_ORDER.index),
        "properties": {key: properties[key] for key in _ORDER},
    }
