"""Reads `components` of matrix.yaml, the optional parts that --with adds to an image.

A component has wheels of the default index (`requires`), wheels that no index has (`wheels`, by hash), or
one program that is not a Python package (`program`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from torchkiln.matrix import kept_gpus
from torchkiln.model.cell import Cell, CellComponent, OwnFile, TorchBuild
from torchkiln.model.layer_format import NAMED_FORMATS
from torchkiln.model.operating_system import SYSTEMS
from torchkiln.util.versions import major_of, minor_of

_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: Words with another meaning in tags. A date begins with a digit, and no suffix does.
_TAKEN = ("runtime", "devel", *NAMED_FORMATS, *(name.partition(".")[0] for name in SYSTEMS))


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedWheel:
    """A wheel by hash, and the torch and CUDA that it was built for."""

    torch: str  # "2.7"
    cuda: str  # "12"
    file: OwnFile


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentOffer:
    """A component in matrix.yaml."""

    name: str
    suffix: str
    requires: tuple[str, ...]
    wheels: tuple[OfferedWheel, ...]
    program: OwnFile | None


def offers_of(data: Mapping[str, Any]) -> tuple[ComponentOffer, ...]:
    """The offers in *data*, which matches the schema, by name."""
    return tuple(
        ComponentOffer(
            name=name,
            suffix=body["suffix"],
            requires=tuple(body.get("requires", ())),
            wheels=tuple(
                OfferedWheel(torch=wheel["torch"], cuda=wheel["cuda"], file=_own_wheel(wheel))
                for wheel in body.get("wheels", ())
            ),
            program=_program(body["program"]) if "program" in body else None,
        )
        for name, body in sorted(data.items())
    )


def faults(data: object, packages: Iterable[str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Faults in `components` that the schema cannot find, by path. Skips values that violate the schema."""
    seen: dict[str, str] = {}
    always = {_project(text) for text in packages}
    for name, body in data.items() if isinstance(data, dict) else ():
        if not isinstance(name, str) or not isinstance(body, dict):
            continue
        at = ("components", name)
        if name in always:
            yield at, f"{name} is in `packages`, so every image has it already"
        if not any(body.get(key) for key in ("requires", "wheels", "program")):
            yield at, "is empty; add requires, wheels or program"
        suffix = body.get("suffix")
        if isinstance(suffix, str):
            if suffix in _TAKEN or kept_gpus.is_taken(suffix):
                yield (*at, "suffix"), f"{suffix} has another meaning in tags; choose another suffix"
            elif suffix in seen:
                yield (*at, "suffix"), f"{suffix} is the suffix of {seen[suffix]} already"
            seen.setdefault(suffix, name)
        for index, text in enumerate(body["requires"] if isinstance(body.get("requires"), list) else ()):
            if isinstance(text, str) and _project(text) in ("torch", "torchvision", "torchaudio"):
                yield (*at, "requires", index), f"the cell determines {_project(text)}; remove it here"


def named(
    values: Sequence[str], offers: Sequence[ComponentOffer], packages: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """*values* sorted into components, packages that every image has, and unknown names."""
    known, always = {offer.name for offer in offers}, {_project(text) for text in packages}
    names = sorted(set(values))
    return (
        tuple(name for name in names if name in known),
        tuple(name for name in names if name not in known and name in always),
        tuple(name for name in names if name not in known and name not in always),
    )


def for_cell(offer: ComponentOffer, cell: Cell, build: TorchBuild) -> CellComponent | str:
    """*offer* for *cell*, or why it is not available for that cell, as a clause."""
    wheels = [wheel.file for wheel in offer.wheels if _fits(wheel, cell, build)]
    if offer.wheels and not wheels:
        others = (f"torch {wheel.torch} with CUDA {wheel.cuda}" for wheel in offer.wheels)
        here = f"torch {minor_of(cell.torch)} with CUDA {major_of(build.cuda)} on Python {cell.python}"
        return (
            f"matrix.yaml has no wheel of {offer.name} for {here},"
            f" only for {', '.join(dict.fromkeys(others))}"
        )
    return CellComponent(
        name=offer.name,
        suffix=offer.suffix,
        requires=offer.requires,
        wheels=tuple(wheels),
        program=offer.program,
    )


def files_of(component: CellComponent) -> tuple[OwnFile, ...]:
    """The files of *component* that no index has."""
    return (*component.wheels, *([component.program] if component.program else []))


def _fits(wheel: OfferedWheel, cell: Cell, build: TorchBuild) -> bool:
    interpreters = {tag.interpreter for tag in parse_wheel_filename(wheel.file.filename)[3]}
    python = cell.python.replace(".", "")
    return (
        wheel.torch == minor_of(cell.torch)
        and wheel.cuda == major_of(build.cuda)
        and bool(interpreters & {f"cp{python}", "py3"})
    )


def _own_wheel(data: Mapping[str, Any]) -> OwnFile:
    name, version, *_ = data["file"].split("-")
    return OwnFile(
        name=canonicalize_name(name),
        version=version.replace("_", "."),
        filename=data["file"],
        sha256=data["sha256"],
    )


def _program(data: Mapping[str, Any]) -> OwnFile:
    return OwnFile(name=data["name"], version=data["version"], filename=data["file"], sha256=data["sha256"])


def _project(requirement: str) -> str:
    found = _NAME.match(requirement.strip())
    return canonicalize_name(found.group()) if found else ""
