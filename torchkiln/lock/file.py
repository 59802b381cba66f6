"""LockedCell ⇄ its two files: lock.json, which we read, and requirements.txt, which pip reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torchkiln.errors import Stale
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.model.cell import (
    Build,
    Cell,
    Component,
    Constraint,
    Limit,
    OwnFile,
    Resolution,
    Source,
    Status,
    Toolkit,
)
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import (
    LockedArchive,
    LockedBase,
    LockedCell,
    LockedComponent,
    LockedTools,
    LockedWheel,
    OsPackage,
    artefact_json,
)
from torchkiln.util.schema import sentences, shipped, told
from torchkiln.util.strict_json import json_of

SCHEMA = 2
# What explains a resolution and decides nothing: a reworded sentence leaves every lock as it is.
_EXPLAINS = ("alternatives", "lockable", "nearest", "why_unavailable")
_PLAIN = re.compile(r"[A-Za-z0-9.]{1,20}")
_NAME = re.compile(r"[a-z0-9-]{1,60}")


def to_json(locked: LockedCell) -> bytes:
    """The committed form: one wheel, one OS package and one layer a line, for the sake of diffs."""
    document = _document(locked)
    document = {"schema": SCHEMA, "digest": _digest(document), **document}
    document["seal"] = _seal(document)
    lines = [f'  "{key}": {_field(key, value)}' for key, value in document.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def from_json(data: bytes, *, where: str = "lock.json") -> LockedCell:
    """The inverse of `to_json`.

    :raises Stale: *data* is no lock, one of another schema, or changed since it was written; names *where*.
    """
    document = parse(data, where=where)
    if told := broken_seal(document):
        raise Stale(f"{where}: {told}", hint=how_to_mend(document, where))
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
        raise Stale(f"{where}: schema {told(schema)}, not {SCHEMA}", hint=how_to_mend(document, where))
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
    return {
        "schema": SCHEMA,
        "inputs": locked.inputs,
        "as_of": locked.as_of,
        "epoch": locked.epoch,
        # Derived, for the reader: which indexes had to be configured when this was locked.
        "indexes": sorted({wheel.index.value for wheel in locked.wheels}),
        **({"stand_ins": [source.value for source in locked.stand_ins]} if locked.stand_ins else {}),
        **({"by_record": list(locked.by_record)} if locked.by_record else {}),
        "resolution": json.loads(json.dumps(plain(locked.resolution))),
        "wheels": [_told(wheel) for wheel in locked.wheels],
        **_components(locked),
        **({"archives": [asdict(one) for one in locked.archives]} if locked.archives else {}),
        "base": artefact_json(locked.base),
        **({"tools": artefact_json(locked.tools)} if locked.tools else {}),
        "layers": [{"title": layer.title, **asdict(layer.blob)} for layer in locked.layers],
    }


def _components(locked: LockedCell) -> dict[str, Any]:
    """No components are no word, so that other locks stay as they are; nor is a program that is none."""
    told = [
        {"name": one.name, "wheels": list(one.wheels)}
        | ({"program": _told(one.program)} if one.program else {})
        for one in locked.components
    ]
    return {"components": told} if told else {}


def _told(wheel: LockedWheel) -> dict[str, Any]:
    return {key: value for key, value in asdict(wheel).items() if key not in ("at", "size") or value}


def plain(resolution: Resolution) -> dict[str, Any]:
    """What *resolution* decides, as plain values: ids and values, no sentences; what is empty is left out."""
    values = {key: value for key, value in asdict(resolution).items() if key not in _EXPLAINS}
    values = {key: value for key, value in values.items() if key not in ("toolkit", "tools") or value}
    values["limits"] = [str(limit) for limit in resolution.limits]
    if toolkit := values.get("toolkit"):
        values["toolkit"] = {name: told for name, told in sorted(toolkit.items()) if told}
    if not values["components"]:
        del values["components"], values["cell"]["components"]
    return values


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
    if not set(document.get("stand_ins", ())) <= set(document["indexes"]):
        yield "stand_ins: not among the indexes"
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
    archives = [LockedArchive(**one) for one in document.get("archives", ())]
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
    told = [[one["name"] for one in some] for some in (resolution.get("components", []), locked)]
    if told != [asked, asked]:
        yield "components: the cell, its resolution and the lock name different ones"
    asked_for = [one["program"]["sha256"] for one in resolution.get("components", []) if one["program"]]
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
    """The noun that a document from `parse` stands for."""
    tools = document.get("tools")
    return LockedCell(
        resolution=_resolution(document["resolution"]),
        wheels=tuple(_wheel(one) for one in document["wheels"]),
        base=LockedBase(**_fields(document["base"])),
        as_of=document["as_of"],
        epoch=document["epoch"],
        inputs=parse_digest(document["inputs"]),
        layers=tuple(_layer(**one) for one in document["layers"]),
        stand_ins=tuple(Source(one) for one in document.get("stand_ins", ())),
        by_record=tuple(document.get("by_record", ())),
        tools=LockedTools(**_fields(tools)) if tools else None,
        archives=tuple(LockedArchive(**one) for one in document.get("archives", ())),
        components=tuple(
            LockedComponent(
                name=one["name"],
                wheels=tuple(one["wheels"]),
                program=_wheel(one["program"]) if "program" in one else None,
            )
            for one in document.get("components", ())
        ),
    )


def _layer(*, title: str, **blob: Any) -> ImageLayer:
    return ImageLayer(title=title, blob=Blob(**blob))


def _wheel(value: Mapping[str, Any]) -> LockedWheel:
    return LockedWheel(**{"size": 0, **value, "index": Source(value["index"])})


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    packages = tuple(OsPackage(name=name, version=version) for name, version in value["packages"].items())
    return {**value, "packages": packages}


def _resolution(value: Mapping[str, Any]) -> Resolution:
    return Resolution(
        cell=Cell(**{**value["cell"], "components": tuple(value["cell"].get("components", ()))}),
        status=Status(value["status"]),
        build=None if value["build"] is None else _build(value["build"]),
        min_driver=value["min_driver"],
        full_driver=value["full_driver"],
        requirements=tuple(value["requirements"]),
        constraints=tuple(Constraint(**one) for one in value["constraints"]),
        limits=tuple(Limit.parse(one) for one in value["limits"]),
        toolkit=_toolkit(value.get("toolkit")),
        tools=value.get("tools"),
        components=tuple(_component(one) for one in value.get("components", ())),
    )


def _component(value: Mapping[str, Any]) -> Component:
    return Component(
        name=value["name"],
        suffix=value["suffix"],
        requires=tuple(value["requires"]),
        wheels=tuple(OwnFile(**one) for one in value["wheels"]),
        program=OwnFile(**value["program"]) if value["program"] else None,
    )


def _toolkit(value: Mapping[str, Any] | None) -> Toolkit | None:
    if value is None:
        return None
    lists = {name: tuple(value.get(name, ())) for name in ("programs", "libraries")}
    return Toolkit(**{**value, **lists})


def _build(value: Mapping[str, Any]) -> Build:
    return Build(**{**value, "source": Source(value["source"]), "archs": tuple(value["archs"])})
