"""matrix.yaml's `components` -> what a cell can have on top, by --with: Offers, and a Component for one cell.

A component brings wheels of the default index (`requires`), wheels that no index has (`wheels`, by hash), or
one program that is no Python package at all (`program`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from torchkiln.model.cell import Cell, CellComponent, OwnFile, TorchBuild
from torchkiln.model.layer_format import NAMED_FORMATS
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.util.versions import major_of, minor_of

_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: What stands in tags already; a date begins with a digit, which no suffix does.
_TAKEN = ("runtime", "devel", *NAMED_FORMATS, *(name.partition(".")[0] for name in SYSTEMS))


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedWheel:
    """A wheel by content, and the torch and CUDA that it was built for."""

    torch: str  # "2.7"
    cuda: str  # "12"
    file: OwnFile


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A component as the matrix offers it."""

    name: str
    suffix: str
    requires: tuple[str, ...]
    wheels: tuple[OfferedWheel, ...]
    program: OwnFile | None


def offers_of(data: Mapping[str, Any]) -> tuple[Offer, ...]:
    """The offers in *data*, which fits the schema, by name."""
    return tuple(
        Offer(
            name=name,
            suffix=one["suffix"],
            requires=tuple(one.get("requires", ())),
            wheels=tuple(
                OfferedWheel(torch=told["torch"], cuda=told["cuda"], file=_own_wheel(told))
                for told in one.get("wheels", ())
            ),
            program=_program(one["program"]) if "program" in one else None,
        )
        for name, one in sorted(data.items())
    )


def faults(data: object, packages: Iterable[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What no schema can tell of `components`, by its place in matrix.yaml. Skips what has a wrong shape."""
    seen: dict[str, str] = {}
    always = {_project(text) for text in packages}
    for name, one in data.items() if isinstance(data, dict) else ():
        if not isinstance(name, str) or not isinstance(one, dict):
            continue
        at = ("components", name)
        if name in always:
            yield at, f"{name} is in `packages`: every image has it already"
        if not any(one.get(key) for key in ("requires", "wheels", "program")):
            yield at, "brings nothing: give requires, wheels or program"
        suffix = one.get("suffix")
        if isinstance(suffix, str):
            if suffix in _TAKEN:
                yield (*at, "suffix"), f"{suffix} says something else in a tag; choose another suffix"
            elif suffix in seen:
                yield (*at, "suffix"), f"{suffix} is {seen[suffix]}'s already"
            seen.setdefault(suffix, name)
        for index, text in enumerate(one["requires"] if isinstance(one.get("requires"), list) else ()):
            if isinstance(text, str) and _project(text) in ("torch", "torchvision", "torchaudio"):
                yield (*at, "requires", index), f"{_project(text)} is the cell's own; leave it out"


def named(
    values: Sequence[str], offers: Sequence[Offer], packages: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """*values* sorted out: components, packages (which every image has), and what neither is."""
    known, always = {offer.name for offer in offers}, {_project(text) for text in packages}
    wanted = sorted(set(values))
    return (
        tuple(name for name in wanted if name in known),
        tuple(name for name in wanted if name not in known and name in always),
        tuple(name for name in wanted if name not in known and name not in always),
    )


def for_cell(offer: Offer, cell: Cell, build: TorchBuild) -> CellComponent | str:
    """*offer* for *cell*, or why it has nothing for it, in a clause."""
    wheels = [one.file for one in offer.wheels if _fits(one, cell, build)]
    if offer.wheels and not wheels:
        having = ", ".join(dict.fromkeys(f"torch {one.torch} with CUDA {one.cuda}" for one in offer.wheels))
        here = f"torch {minor_of(cell.torch)} with CUDA {major_of(build.cuda)} on Python {cell.python}"
        return f"matrix.yaml names no wheel of {offer.name} for {here}; it does for {having}"
    return CellComponent(
        name=offer.name,
        suffix=offer.suffix,
        requires=offer.requires,
        wheels=tuple(wheels),
        program=offer.program,
    )


def files_of(component: CellComponent) -> tuple[OwnFile, ...]:
    """What of *component* is on no index."""
    return (*component.wheels, *([component.program] if component.program else []))


def _fits(one: OfferedWheel, cell: Cell, build: TorchBuild) -> bool:
    tags = parse_wheel_filename(one.file.filename)[3]
    interpreters = {tag.interpreter for tag in tags}
    python = cell.python.replace(".", "")
    return (
        one.torch == minor_of(cell.torch)
        and one.cuda == major_of(build.cuda)
        and bool(interpreters & {f"cp{python}", "py3"})
    )


def _own_wheel(told: Mapping[str, Any]) -> OwnFile:
    name, version, *_ = told["file"].split("-")
    return OwnFile(
        name=canonicalize_name(name),
        version=version.replace("_", "."),
        filename=told["file"],
        sha256=told["sha256"],
    )


def _program(told: Mapping[str, Any]) -> OwnFile:
    return OwnFile(name=told["name"], version=told["version"], filename=told["file"], sha256=told["sha256"])


def _project(requirement: str) -> str:
    found = _NAME.match(requirement.strip())
    return canonicalize_name(found.group()) if found else ""
