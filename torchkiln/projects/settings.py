"""Reads the settings of a project: torchkiln.toml, or the same keys in [tool.torchkiln] of pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from torchkiln.errors import ConfigError
from torchkiln.model import fields
from torchkiln.projects.files import read_inside
from torchkiln.projects.pyproject import FILE as PYPROJECT
from torchkiln.projects.variables import variable_fault
from torchkiln.util import codec
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.toml import toml_of

FILE = "torchkiln.toml"
TABLE = "tool.torchkiln"

_Variable = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description='the name of a variable, "HF_HOME"')
]
_Package = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?$",
        description='the name of a package, "hydra-core"',
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSettings:
    """The settings of a project's image, in addition to its packages and its code."""

    command: Annotated[
        tuple[fields.Line, ...],
        Meta(max_length=200, description="started if `docker run` names no command; empty: the image's own"),
    ] = ()
    apt: Annotated[
        tuple[fields.AptPackage, ...],
        Meta(max_length=200, description="packages of the image's OS, installed with their dependencies"),
    ] = ()
    env: Annotated[Mapping[_Variable, fields.Line], Meta(description="environment variables")] = field(
        default_factory=dict
    )
    test: Annotated[
        tuple[fields.Line, ...],
        Meta(max_length=200, description="the project's own test, which `project smoke` runs"),
    ] = ()
    build: Annotated[
        tuple[_Package, ...],
        Meta(
            max_length=100,
            description="packages without wheels that are built in a sandbox; the build runs their code",
        ),
    ] = ()
    wheels: Annotated[
        str,
        Meta(
            pattern=fields.INSIDE,
            max_length=1000,
            description='a folder of wheels in the project\'s folder, "wheels"',
        ),
    ] = ""


NO_SETTINGS = ProjectSettings()


def read_settings(folder: Path) -> ProjectSettings:
    """The settings of the project in *folder*; the defaults if there are none.

    :raises ConfigError: the settings are invalid, or in both files; lists all faults.
    """

    def read(name: str) -> bytes | None:
        path = folder / name
        return read_inside(folder, path) if path.is_symlink() or path.exists() else None

    return settings_from(read)


def settings_from(read: Callable[[str], bytes | None]) -> ProjectSettings:
    """The settings of a project.

    :param read: returns the bytes of the file with that name in the project's folder; None: there is none. It
        raises ValueError if the file cannot be read.
    :raises ConfigError: as `read_settings`.
    """
    found = [(where, value) for where, value in _tables(read) if value is not None]
    if len(found) > 1:
        raise ConfigError(
            f"{FILE}: {PYPROJECT} also has [{TABLE}]", hint="move the settings into one of the two files"
        )
    return settings_of(*found[0]) if found else NO_SETTINGS


def settings_of(where: str, document: object) -> ProjectSettings:
    """The settings in *document*, which is in the file or table *where*.

    :raises ConfigError: they are invalid; lists all faults.
    """
    faults = sentences(document, shipped("project-settings"), where)
    if not faults and isinstance(document, dict):
        faults = [f"{where}: {fault}" for fault in _faults(document)]
    if faults:
        raise ConfigError("\n".join(faults), hint="docs/projects.md lists the settings")
    return codec.typed(ProjectSettings, document)


def _tables(read: Callable[[str], bytes | None]) -> Iterator[tuple[str, object | None]]:
    """For each of the two files that exists: its name, for messages, and its settings; None: it has none."""
    for name in (FILE, PYPROJECT):
        try:
            if (data := read(name)) is None:
                continue
            document = toml_of(data)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}", hint=f"correct {name}") from None
        if name == FILE:
            yield FILE, document
            continue
        tool = document.get("tool")
        yield f"{PYPROJECT}: [{TABLE}]", tool.get("torchkiln") if isinstance(tool, dict) else None


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    """The faults in *document*, which matches the schema."""
    for name, value in document.get("env", {}).items():
        if fault := variable_fault(name, value):
            yield f"env: {name} cannot be set: {fault}"
    names = [text.partition("=")[0] for text in document.get("apt", ())]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"apt: {name} is listed twice"
    if {".", ".."} & {*document.get("wheels", "").split("/")}:
        yield f"wheels: {document['wheels']!r} is not in the project's folder: write it without . and .."
    for key in ("command", "test"):
        if document.get(key, [""])[0].startswith("-"):
            yield f"{key}: {document[key][0]!r} is an option, not a program"
