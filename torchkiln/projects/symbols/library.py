"""Defines a shared library of a wheel, with the symbols that the check needs; its JSON form is cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.elf.dynamic import Dynamic
from torchkiln.projects.symbols.names import cuda_library, is_c_library, of_python, of_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A shared library of a package."""

    package: str
    path: str  # in the wheel
    dynamic: Dynamic

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def names(self) -> frozenset[str]:
        """The names by which other libraries may need this one: its file name and its SONAME."""
        return frozenset({self.name, self.dynamic.soname} - {""})


def is_claimed(symbol: str) -> bool:
    """Whether *symbol* belongs to torch, CUDA or Python, according to its name."""
    return of_torch(symbol) or of_python(symbol) or bool(cuda_library(symbol))


def to_json(found: Dynamic) -> dict[str, Any]:
    """*found* as JSON values, without the undefined symbols that the check does not use, which are most."""
    undefined = (
        (name, version, library)
        for name, version, library in found.undefined
        if is_claimed(name) or (library and not is_c_library(library))
    )
    return {
        "soname": found.soname,
        "needed": list(found.needed),
        "required": _lists(found.required),
        "undefined": sorted(undefined),
        "versions": sorted(found.versions),
        "defined": _lists(found.defined),
    }


def from_json(values: Mapping[str, Any]) -> Dynamic:
    """The inverse of `to_json`."""
    return Dynamic(
        soname=values["soname"],
        needed=tuple(values["needed"]),
        required=_sets(values["required"]),
        undefined=frozenset((name, version, library) for name, version, library in values["undefined"]),
        versions=frozenset(values["versions"]),
        defined=_sets(values["defined"]),
    )


def _lists(values: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    return {key: sorted(found) for key, found in values.items()}


def _sets(values: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {key: frozenset(found) for key, found in values.items()}
