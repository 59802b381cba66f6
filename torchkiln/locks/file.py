"""Reads and writes the two files of a lock: lock.json, and requirements.txt for pip."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from torchkiln.errors import Stale
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.model.cell import Limit, Resolution, Source
from torchkiln.model.device_code import cut_wheels
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.lock import LockedArchive, LockedCell, artefact_fields, artefact_json
from torchkiln.model.operating_system import base_name
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.util import codec
from torchkiln.util.schema import sentences, shipped, shown
from torchkiln.util.strict_json import json_of
from torchkiln.util.versions import numbers

SCHEMA = 2
_WHEEL_FILE = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.+!]+(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}\.whl")


_ENVELOPE = ("schema", "digest", "indexes", "seal")
LIMIT = 4 << 20  # maximum bytes of a lock, which has about 60,000
ORDER = (
    *("schema", "digest", "inputs", "as_of", "epoch", "indexes", "untrusted", "by_record", "resolution"),
    *("wheels", "device_code", "archives", "base", "standalone", "tools", "layers", "seal"),
)


def to_json(locked: LockedCell) -> bytes:
    """The contents of lock.json, with a line for each wheel, OS package and layer, for readable diffs."""
    document = _document(locked)
    document["digest"] = _digest(document)
    document["seal"] = _seal(document)
    document = {key: document[key] for key in ORDER if key in document}
    lines = [f'  "{key}": {_field(key, value)}' for key, value in document.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def from_json(data: bytes, *, where: str = "lock.json") -> LockedCell:
    """The inverse of `to_json`.

    :raises Stale: *data* is not a lock, has another schema, is not consistent, or was changed; the message
        lists every fault, and begins with *where*.
    """
    try:
        document = json_of(data)
    except ValueError as error:
        raise _broken([str(error)], where) from None
    schema = document.get("schema", "none") if isinstance(document, dict) else SCHEMA
    if schema != SCHEMA:
        raise _broken([f"schema {shown(schema)}, not {SCHEMA}"], where)
    if isinstance(document, dict) and "seal" not in document:
        raise _broken(
            ["the key 'seal' is missing: an older torchkiln wrote the file, or it is truncated"], where
        )
    if faults := sentences(document, shipped("lock"), where):
        raise Stale("\n".join(faults), hint=how_to_restore(where))
    if faults := list(_inconsistencies(document)):
        raise _broken(faults, where)
    if document["seal"] != _seal(document) or document["digest"] != _digest(document):
        raise _broken(["edited or merged incorrectly: it was changed after `lock` wrote it"], where)
    return _locked_of(document)


def _broken(faults: Iterable[str], where: str) -> Stale:
    return Stale("\n".join(f"{where}: {fault}" for fault in faults), hint=how_to_restore(where))


def how_to_restore(where: str) -> str:
    """A hint for a broken lock at *where*, "images/TAG/lock.json"."""
    tag = PurePath(where).parent.name or "--all"
    return f"restore it: git checkout -- {where}; or lock the newest packages: torchkiln lock {tag}"


def lock_digest(locked: LockedCell) -> Digest:
    """The digest of *locked* without its layers, which follow from the rest, and the paths of its wheels."""
    return _digest(_document(locked))


def requirements_txt(locked: LockedCell) -> bytes:
    """The wheels of *locked* for ``pip install --require-hashes --no-deps``, one on each line."""
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
    # For people who read the file; can be derived from the wheels.
    indexes = sorted({wheel.index.value for wheel in locked.wheels})
    values: dict[str, Any] = codec.plain(locked) | {"resolution": plain(locked.resolution)}
    values["base"] = artefact_json(locked.base)
    if locked.tools:
        values["tools"] = artefact_json(locked.tools)
    values |= {"schema": SCHEMA, "indexes": indexes}
    return {key: values[key] for key in ORDER if key in values}


def plain(resolution: Resolution) -> dict[str, Any]:
    """The JSON values of *resolution*; its limits are ids of facts with values, not sentences."""
    values: dict[str, Any] = codec.plain(resolution)
    if "toolkit" in values:
        values["toolkit"] = dict(sorted(values["toolkit"].items()))
    return values | {"limits": [str(limit) for limit in resolution.limits]}


def _digest(document: Mapping[str, Any]) -> Digest:
    """The digest that images contain; it excludes layers and seal, which follow from the rest, and paths."""
    excluded = ("digest", "layers", "seal")
    kept = {key: value for key, value in document.items() if key not in excluded}
    wheels = [{key: wheel[key] for key in wheel if key != "path"} for wheel in document["wheels"]]
    return digest_of_json({**kept, "wheels": wheels})


def _seal(document: Mapping[str, Any]) -> Digest:
    """The digest of all values in the file, regardless of its formatting."""
    return digest_of_json({key: value for key, value in document.items() if key != "seal"})


def _inconsistencies(document: Mapping[str, Any]) -> Iterator[str]:
    """The contradictions in *document*, which matches its schema."""
    yield from wheel_faults(document["wheels"])
    without_size = [(wheel["name"], wheel["index"]) for wheel in document["wheels"] if "size" not in wheel]
    if without_size != [(name, Source.PYTORCH.value) for name in document.get("by_record", ())]:
        yield "by_record: must list the wheels of PyTorch's index that have no size"
    if own := [wheel["name"] for wheel in document["wheels"] if wheel["index"] == Source.PROJECT.value]:
        yield f"wheels: {', '.join(own)}: only the lock of a project may have wheels that are on no index"
    yield from _device_code_faults(document)
    if document["indexes"] != sorted({wheel["index"] for wheel in document["wheels"]}):
        yield "indexes: must list the indexes of the wheels"
    if document["resolution"]["build"]["cudnn"] is None:
        yield "resolution.build.cudnn: must be text, not nothing; the tag contains it"
    yield from _archive_faults(document)
    yield from _python_faults(document)
    base = document["base"]
    tools, needed = document.get("tools"), document["resolution"].get("tools")
    if (name := tools["name"] if tools else None) != needed:
        yield f"tools: {name or 'none'}, but the cell needs {needed or 'none'}"
    elif tools and (tools["os"], tools["base"]) != (base["os"], base["digest"]):
        yield "tools: made for another base"


def _python_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Faults if the base or the standalone Python does not match the cell's system and Python version."""
    cell, base, standalone = document["resolution"]["cell"], document["base"], document.get("standalone")
    wanted, system = document["resolution"].get("standalone"), base_name(cell["os"])
    if (wanted is None) != (system == cell["os"]):
        yield f"resolution.standalone: does not match {cell['os']}"
    archive = {name: standalone[name] for name in ("filename", "sha256")} if standalone else None
    if archive != wanted:
        yield "standalone: not made from the archive in resolution.standalone"
    python = (standalone or base)["version" if standalone else "python"]
    platforms = [found.get("platform", DEFAULT_PLATFORM) for found in (base, cell)]
    if platforms[0] != platforms[1]:
        yield f"base: for {platforms[0]}, but the cell needs {platforms[1]}"
    if base["os"] != system or not python.startswith(cell["python"] + "."):
        at, found = "standalone" if standalone else "base", f"{base['os']} with Python {python}"
        yield f"{at}: {found}, but the cell needs {system} with Python {cell['python']}"


def wheel_faults(wheels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Faults of *wheels* that the schema cannot find: file names of other wheels, and duplicates."""
    seen: set[str] = set()
    for number, wheel in enumerate(wheels):
        at, name = f"wheels[{number}]", wheel["name"]
        if not _WHEEL_FILE.fullmatch(wheel["filename"]):
            yield f"{at}.filename: {shown(wheel['filename'])} is not a valid wheel filename"
            continue
        file, version, *_ = wheel["filename"].split("-")
        if re.sub(r"[_.]+", "-", file).lower() != name or not _same_version(version, wheel["version"]):
            yield f"{at}: {wheel['filename']} is not a wheel of {name} {wheel['version']}"
        if name in seen:
            yield f"{at}: duplicate wheel of {name}"
        seen.add(name)


def _archive_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Differences between the archives and the resolution."""
    archives = codec.typed(tuple[LockedArchive, ...], document.get("archives", []))
    if len({archive.component for archive in archives}) < len(archives):
        yield "archives: duplicate component"
    for number, archive in enumerate(archives):
        name, component, version = archive.filename, archive.component, archive.version
        if not name.startswith(f"{component}-") or f"-{version}-" not in name:
            yield f"archives[{number}]: {name} is not an archive of {component} {version}"
    expected = document["resolution"].get("toolkit", {}).get("archives")
    if (digest_of(archives) if archives else None) != expected:
        yield "archives: do not match resolution.toolkit"


def _device_code_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Differences between the cell's GPUs and the device code that the image keeps."""
    cell, found = document["resolution"]["cell"], document.get("device_code", {})
    gpus, own_use = cell.get("gpus", []), cell.get("own_use", False)
    if found.get("gpus", []) != gpus:
        yield "device_code.gpus: differs from the GPUs of the cell"
    if found and found["own_use"] != own_use:
        yield "device_code.own_use: differs from that of the cell"
    if own_use and not gpus:
        yield "resolution.cell: own_use without gpus"
    if gpus != sorted(gpus, key=numbers):
        yield "resolution.cell.gpus: not in ascending order"
    wheels = found.get("wheels", [])
    expected = cut_wheels((wheel["name"] for wheel in document["wheels"]), own_use=own_use)
    if found and tuple(wheels) != expected:
        yield f"device_code.wheels: must be {', '.join(expected)}"


def _same_version(a: str, b: str) -> bool:
    """Whether two versions are equal, regardless of spelling: 1.0+a_b in file names is 1.0+a.b."""
    if a == b:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(a.replace("_", "-")) == Version(b)
    except InvalidVersion:
        return False


def _field(key: str, value: Any) -> str:
    if key in ("wheels", "archives", "layers"):
        return _block("[", map(json.dumps, value), "]", 2)
    if key in ("resolution", "base", "standalone", "tools"):
        inner = (
            f'"{name}": '
            + (
                _block("{", (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in field.items()), "}", 4)
                if name == "packages"
                else _block("[", map(json.dumps, field), "]", 4)
                if name in ("limits", "constraints")
                else json.dumps(field)
            )
            for name, field in value.items()
        )
        return _block("{", inner, "}", 2)
    return json.dumps(value)


def _block(opening: str, items: Iterable[str], closing: str, indent: int) -> str:
    lines = [" " * (indent + 2) + item for item in items]
    return f"{opening}\n" + ",\n".join(lines) + f"\n{' ' * indent}{closing}" if lines else opening + closing


def _locked_of(document: Mapping[str, Any]) -> LockedCell:
    resolution = document["resolution"]
    limits = [codec.plain(Limit.parse(text)) for text in resolution["limits"]]
    values = _without(document, *_ENVELOPE)
    values["layers"] = [
        {"title": layer["title"], "blob": _without(layer, "title")} for layer in document["layers"]
    ]
    artefacts = {key: artefact_fields(values[key]) for key in ("base", "tools") if key in values}
    return codec.typed(LockedCell, {**values, **artefacts, "resolution": {**resolution, "limits": limits}})


def _without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in keys}
