"""Reads and writes torchkiln.lock.json, the lock of a project in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchkiln.errors import Stale
from torchkiln.locks.file import wheel_faults
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.project import ProjectLock
from torchkiln.projects.files import LIMIT
from torchkiln.util import codec
from torchkiln.util.files import write_atomic
from torchkiln.util.schema import sentences, shipped, shown
from torchkiln.util.strict_json import json_of, read_file

FILE = "torchkiln.lock.json"
SCHEMA = 1


_ENVELOPE = ("schema", "seal")
ORDER = (
    *("schema", "name", "parent", "parent_lock", "as_of", "inputs", "untrusted", "extras", "groups"),
    *("requirements", "removed", "may_lack", "wheels", "origins", "apt", "seal"),
)


def to_json(lock: ProjectLock) -> bytes:
    """The contents of the file, with a line for each requirement and wheel, for readable diffs."""
    document: dict[str, Any] = codec.plain(lock) | {"schema": SCHEMA}
    document["seal"] = _seal(document)
    lines = [f'  "{key}": {_field(document[key])}' for key in ORDER if key in document]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def project_digest(lock: ProjectLock) -> Digest:
    """The digest of *lock*: the seal in its file."""
    return _seal(codec.plain(lock) | {"schema": SCHEMA})


def from_json(data: bytes, *, where: str = FILE) -> ProjectLock:
    """The inverse of `to_json`.

    :raises Stale: *data* is not a project's lock, or was changed after it was written; lists all faults.
    """
    hint = f"restore it: git checkout -- {where}; or recreate it: torchkiln project lock DIR"
    try:
        document = json_of(data)
    except ValueError as error:
        raise Stale(f"{where}: {error}", hint=hint) from None
    if isinstance(document, dict) and document.get("schema", SCHEMA) != SCHEMA:
        raise Stale(f"{where}: schema {shown(document['schema'])}, not {SCHEMA}", hint=hint)
    faults = sentences(document, shipped("project-lock"), where) or [
        f"{where}: {fault}" for fault in _inconsistencies(document)
    ]
    if not faults and document["seal"] != _seal(document):
        faults = [f"{where}: edited or merged incorrectly: it changed after `lock` wrote it"]
    if faults:
        raise Stale("\n".join(faults), hint=hint)
    return codec.typed(ProjectLock, {key: value for key, value in document.items() if key not in _ENVELOPE})


def load_project(folder: Path) -> ProjectLock | None:
    """The lock in the project's *folder*; None: there is none.

    :raises Stale: the file is not a lock, or was changed after it was written.
    """
    path = folder / FILE
    try:
        data = read_file(path, LIMIT, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Stale(
            f"{path}: {error.strerror}", hint=f"recreate it: torchkiln project lock {folder}"
        ) from None
    return from_json(data, where=str(path))


def save_project(folder: Path, lock: ProjectLock) -> Path:
    """Write *lock* into the project's *folder*; returns its path."""
    path = folder / FILE
    write_atomic(path, to_json(lock))
    return path


def _seal(document: Mapping[str, Any]) -> Digest:
    return digest_of_json({key: value for key, value in document.items() if key != "seal"})


def _inconsistencies(document: Mapping[str, Any]) -> Iterator[str]:
    """The contradictions in *document*, which matches its schema."""
    yield from wheel_faults(document["wheels"])
    names = [wheel["name"] for wheel in document["wheels"]]
    removed = document.get("removed", [])
    if names != sorted(names) or removed != sorted(removed):
        yield "wheels, removed: must be sorted by name"
    if missing := sorted(set(removed) - set(names)):
        yield f"removed: {', '.join(missing)}: no wheel replaces it"
    if document.get("may_lack", []) != sorted(document.get("may_lack", [])):
        yield "may_lack: must be sorted"
    debs = [deb["name"] for deb in document.get("apt", {}).get("debs", ())]
    if debs != sorted(set(debs)):
        yield "apt: debs: must be sorted by name, each name once"
    yield from _origin_faults(document)
    if "torch" in names:
        yield "wheels: torch is part of the image, and cannot be in the lock of a project"


def _origin_faults(document: Mapping[str, Any]) -> Iterator[str]:
    origins = document.get("origins", [])
    own = [wheel["name"] for wheel in document["wheels"] if wheel["index"] == Source.PROJECT.value]
    if own != [origin["name"] for origin in origins]:
        yield "origins: must list exactly the wheels that are not from an index"
    for number, origin in enumerate(origins):
        if origin.keys() - {"name"} not in ({"path"}, {"url"}, {"built"}, {"git", "built"}):
            yield f"origins[{number}]: must have exactly one of path, url and built; and git only with built"
        if {".", ".."} & {*origin.get("git", {}).get("subdirectory", "").split("/")}:
            yield f"origins[{number}]: {shown(origin['git']['subdirectory'])} is not inside the repository"
        if {".", ".."} & {*origin.get("path", "").split("/")}:
            yield f"origins[{number}]: {shown(origin['path'])} is not in the project's folder"


def _field(value: Any) -> str:
    if isinstance(value, dict):  # the OS packages
        lines = (f"    {json.dumps(key)}: {_indented(_field(inner))}" for key, inner in value.items())
        return "{\n" + ",\n".join(lines) + "\n  }"
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
