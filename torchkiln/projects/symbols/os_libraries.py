"""Finds the libraries of the operating system that packages need and an image lacks, by its OS packages.

`data/os_libraries.json` says which OS package has a library. Libraries that it does not list are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from typing import Any

from torchkiln.model.operating_system import base_name
from torchkiln.projects.symbols.fit import VARIANT, Library, is_c_library, with_needed
from torchkiln.util.strict_json import json_of

_CUDA_IN_NAME = re.compile(r"(?P<cuda>-cu(?:da)?-?)\d\d")


@cache
def _data() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json_of(files("torchkiln").joinpath("data/os_libraries.json").read_bytes())
    return found


def package_of(library: str, os: str) -> str | None:
    """The OS package of the system *os* that has *library*; "": it has none; None: unknown."""
    found = _data()["libraries"].get(library)
    return found if found is None or isinstance(found, str) else found.get(base_name(os), "")


def advice(package: str, libraries: Iterable[str], os: str, requested: Iterable[str] = ()) -> str:
    """What to do if the image lacks *libraries* that *package* needs, besides the OS packages *requested*."""
    found = {one for library in libraries if (one := package_of(library, os))}
    other = _data()["headless"].get(package)
    ways = [f"set in torchkiln.toml: apt = {json.dumps(sorted({*requested, *found}))}"] if found else []
    return " or ".join([*ways, *([f"require {other} instead of {package}"] if other else [])])


def release_for(package: str, cuda: str) -> str:
    """A requirement for a build of *package* for the CUDA major *cuda*; "" if none is known."""
    known = _data()["cuda"].get(package, {}).get(cuda, "")
    renamed = _CUDA_IN_NAME.sub(rf"\g<cuda>{cuda}", package)
    return f"{renamed}{known}" if known or renamed != package else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lacking:
    """The libraries of the operating system that a package needs and the image lacks."""

    package: str
    path: str  # of a module that cannot be imported, or of a library if there are no modules
    libraries: tuple[str, ...]  # that such modules need, by themselves or through others; sorted
    more: tuple[str, ...]  # that only other libraries need, such as plugins; sorted
    modules: tuple[int, int]  # how many of its extension modules cannot be imported, and how many it has


def lacking(
    libraries: Sequence[Library],
    os: str,
    packages: Collection[str],
    python: str,
    allowed: Collection[str] = (),
) -> Iterator[Lacking]:
    """What the *libraries* of all added packages need, and an image with the OS *packages* lacks.

    Of several variants of a library or module (`x4.so`, `x5.so`), one that can be loaded is enough.

    :param libraries: those of a package one after the other.
    :param python: the version of the image's Python, "3.11".
    :param allowed: names of libraries that may be missing.
    """
    usable = [one for one in libraries if one.is_for(python)]
    own = {name for one in usable for name in one.names}.union(allowed)

    def lacks(library: Library) -> set[str]:
        names = (name for name in library.needed if name not in own and not is_c_library(name))
        return {name for name in names if package_of(name, os) not in (None, *packages)}

    for package, some in groupby(usable, key=attrgetter("package")):
        every = [*some]
        roots = [one for one in every if one.is_module] or every
        needs = {one.path: set().union(*map(lacks, with_needed([one], usable))) for one in roots}
        whole = {VARIANT.sub("#", path) for path, names in needs.items() if not names}
        broken = {path: names for path, names in needs.items() if VARIANT.sub("#", path) not in whole}
        if broken and (roots[0].is_module or len(broken) == len(needs)):  # some libraries may be plugins
            found, rest = set().union(*broken.values()), set().union(*map(lacks, every))
            yield Lacking(
                package=package,
                path=next(iter(broken)),
                libraries=tuple(sorted(found)),
                more=tuple(sorted(rest - found)),
                modules=(len(broken), len(needs)) if roots[0].is_module else (0, 0),
            )
