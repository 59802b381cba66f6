"""Decides whether shared libraries of packages can be loaded in an image: its torch, CUDA, Python and base.

Pure. A fault is reported only if it is certain: a symbol counts as missing if none of the libraries that
could define it does, in whatever order they are loaded. If one of several variants of a library can be loaded
(`x_cuda118.so`, `x_cuda126.so`), faults of the other variants are ignored. These are not checked:

- weak symbols
- libraries that are only opened by path, or are for other accelerators
- libraries that use torch, in packages that work without torch
- needed libraries that belong neither to torch nor to CUDA, such as libtbb.so.12
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torchkiln.elf.dynamic import Dynamic
from torchkiln.projects.symbols.library import Library
from torchkiln.projects.symbols.names import (
    cuda_library,
    is_c_library,
    is_cuda_library,
    is_foreign,
    is_torch_library,
    of_python,
    of_torch,
    stem_of,
)
from torchkiln.projects.symbols.sentences import Lack, missing_library, missing_symbols, missing_version

_NUMBER = re.compile(r"\d+(\.\d+)*")
_MODULE = re.compile(r"(?P<name>\w+)(\.[^/]*)?\.so")
_OTHER_PYTHON = re.compile(r"\.(cpython|cp|pypy|graalpy)-?(?P<version>\d+)[^/]*\.so")


class Unreadable(Exception):
    """A library of the image cannot be read now; the text names what is missing."""


class ParentSymbols(Protocol):
    """The parent image; a method raises Unreadable if a file that it needs is not in the cache."""

    def owner(self, name: str) -> str:
        """The fixed package that contains the library *name*; "" if none does."""
        ...

    def fixed(self) -> Mapping[str, int]:
        """The libraries of all fixed packages, with their sizes."""
        ...

    def library(self, name: str) -> Dynamic:
        """A library of a fixed package."""
        ...

    def base(self) -> Mapping[str, Dynamic]:
        """The libraries of the base, by SONAME."""
        ...

    def python(self) -> frozenset[str]:
        """The symbols of the C API that the image's Python defines."""
        ...

    def release(self, package: str) -> str:
        """Name and version of a fixed package."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A library that cannot be loaded in the image."""

    package: str
    path: str
    library: str  # the library that is missing, or lacks a symbol or a version
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The faults, by package and path, and what could not be checked."""

    faults: tuple[Fault, ...] = ()
    unread: tuple[str, ...] = ()


def fit(libraries: Sequence[Library], parent: ParentSymbols, python: str) -> Fit:
    """Check the *libraries* of all packages that are added to an image.

    :param python: the version of the image's Python, "3.11".
    """
    own = {name for library in libraries for name in library.names}
    check = _Check(libraries, own, parent)
    faults: list[Fault] = []
    by_variant: dict[tuple[str, str], list[list[Fault]]] = defaultdict(list)
    for library in _imported([one for one in libraries if _concerns(one, python)]):
        found = [
            Fault(package=library.package, path=library.path, library=lack.library, sentence=lack.sentence)
            for lack in check.lacks(library)
        ]
        by_variant[library.package, _NUMBER.sub("#", library.path)].append(found)
    for variants in by_variant.values():
        if all(variants):
            faults += [fault for found in variants for fault in found]
    faults.sort(key=lambda fault: (fault.package, fault.path))
    return Fit(faults=tuple(faults), unread=tuple(sorted(check.unread)))


def _imported(libraries: Sequence[Library]) -> Iterator[Library]:
    """Extension modules, libraries that use torch (`torch.ops` loads them), and the libraries that both need.

    Packages open other libraries by path, and often continue without them: bitsandbytes has one for each
    version of CUDA. The same holds for libraries that use torch in a package whose modules do not use torch:
    open3d has operators for one release of torch.
    """
    modules = [library for library in libraries if _is_module(library)]
    loaded = _with_needed(modules, libraries)
    of_torch = {library.package for library in loaded if _uses_torch(library)}
    without = {library.package for library in modules} - of_torch
    opened = [one for one in libraries if _uses_torch(one) and one.package not in without]
    return iter({id(one): one for one in (*loaded, *_with_needed(opened, libraries))}.values())


def _with_needed(waiting: Iterable[Library], libraries: Sequence[Library]) -> list[Library]:
    """The libraries *waiting*, and those of *libraries* that they need."""
    by_name = {name: library for library in libraries for name in library.names}
    found = {id(library): library for library in waiting}
    rest = list(found.values())
    while rest:
        needed = (by_name[name] for name in rest.pop().dynamic.needed if name in by_name)
        new = {id(library): library for library in needed if id(library) not in found}
        found |= new
        rest += new.values()
    return list(found.values())


def _concerns(library: Library, python: str) -> bool:
    """Whether the image may load *library*: it is not for another Python or accelerator."""
    if any(map(is_foreign, library.dynamic.needed)):
        return False
    other = _OTHER_PYTHON.search(library.name)
    return not other or other["version"] == python.replace(".", "")


class _Check:
    """Looks for the libraries and symbols that libraries need; `unread`: what is not in the cache."""

    def __init__(self, libraries: Sequence[Library], own: set[str], parent: ParentSymbols) -> None:
        self._own, self._parent = own, parent
        self._defined = [
            names for library in libraries for names in library.dynamic.defined.values() if names
        ]
        self.unread: set[str] = set()

    def lacks(self, library: Library) -> list[Lack]:
        """Why *library* cannot be loaded."""
        dynamic, own = library.dynamic, self._own
        steps: list[Callable[[], Lack | None]] = [
            *(partial(self._library, name) for name in dynamic.needed if name not in own),
            *(
                partial(self._version, name, version)
                for name, versions in sorted(dynamic.required.items())
                if name not in own
                for version in sorted(versions)
            ),
            *(
                partial(self._symbols, place, symbols, dynamic.needed)
                for place, symbols in self._undefined(library)
            ),
        ]
        return [found for step in steps if (found := self._tried(step))]

    def _tried(self, step: Callable[[], Lack | None]) -> Lack | None:
        try:
            return step()
        except Unreadable as error:
            self.unread.add(str(error))
            return None

    def _library(self, name: str) -> Lack | None:
        """A library of torch or CUDA that the image has in another version, or not at all."""
        if not (is_torch_library(name) or is_cuda_library(name)) or self._parent.owner(name):
            return None
        if is_torch_library(name):
            return missing_library(name, [], self._parent.release("torch"))
        others = [other for other in self._parent.fixed() if stem_of(other) == stem_of(name)]
        return missing_library(name, sorted(others), "") if others else None

    def _version(self, name: str, version: str) -> Lack | None:
        """The symbol version (GLIBCXX_3.4.32) that the loader requires and the library *name* lacks."""
        if is_c_library(name):
            found = self._parent.base().get(name)
        else:
            found = self._parent.library(name) if self._parent.owner(name) else None
        if found is None or not found.versions or version in found.versions:
            return None
        return missing_version(name, version, found.versions)

    def _undefined(self, library: Library) -> Iterator[tuple[str, set[str]]]:
        """The symbols that no added package has, by the place where they must be."""
        groups: dict[str, set[str]] = defaultdict(set)
        for symbol, _, holder in library.dynamic.undefined:
            if place := self._place(symbol, holder, library):
                groups[place].add(symbol)
        for place, symbols in sorted(groups.items()):
            for names in self._defined:
                symbols -= names
            if symbols:
                yield place, symbols

    def _place(self, symbol: str, holder: str, library: Library) -> str:
        """Where *symbol* must be defined: the name of a library, torch, or Python; "": unknown."""
        if holder:
            return holder if holder not in self._own and not is_c_library(holder) else ""
        if of_torch(symbol):
            return _TORCH
        if stem := cuda_library(symbol):
            return next((name for name in library.dynamic.needed if stem_of(name) == stem), "")
        return _PYTHON if of_python(symbol) and _is_module(library) else ""

    def _symbols(self, place: str, symbols: set[str], needed: Sequence[str]) -> Lack | None:
        """The *symbols* that no library of *place* defines; None if all are defined or *place* is unknown."""
        parent = self._parent
        if place == _PYTHON:
            missing = symbols - parent.python()
            return missing_symbols(sorted(missing), "Python", "Python", ()) if missing else None
        if place == _TORCH:
            owner, name = "torch", "libtorch"
        else:
            owner, name = parent.owner(place), place
            if not owner:
                return None
        searched: list[Dynamic] = []
        for one in self._order(place, owner, needed):
            searched.append(parent.library(one))
            for names in searched[-1].defined.values():
                symbols = symbols - names
            if not symbols:
                return None
        there = (symbol for found in searched for names in found.defined.values() for symbol in names)
        return missing_symbols(sorted(symbols), name, parent.release(owner), there)

    def _order(self, place: str, owner: str, needed: Sequence[str]) -> Iterable[str]:
        """The libraries that could define a symbol: *place*, then *needed*, then others; smaller first."""
        fixed, owner_of = self._parent.fixed(), self._parent.owner
        if place == _TORCH:
            those = [name for name in fixed if owner_of(name) in _TORCH_PACKAGES]
        else:
            those = [name for name in fixed if owner_of(name) == owner or name in needed]
        return sorted(those, key=lambda name: (name != place, name not in needed, fixed[name]))


_TORCH, _PYTHON = "torch", "Python"
_TORCH_PACKAGES = frozenset({"torch", "torchvision", "torchaudio"})


def _uses_torch(library: Library) -> bool:
    undefined = library.dynamic.undefined
    return any(map(is_torch_library, library.dynamic.needed)) or any(of_torch(one) for one, _, _ in undefined)


def _is_module(library: Library) -> bool:
    """Whether *library* is an extension module of Python, which only Python can load."""
    found = _MODULE.fullmatch(library.name)
    init = f"PyInit_{found['name']}" if found else ""
    return any(init in names for names in library.dynamic.defined.values())
