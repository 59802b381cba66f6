"""Cell -> the OS's tools that a devel image gets, and the compiler that its nvcc is given; pure.

nvcc refuses a gcc that is newer than it knows. Where the OS's own is, an older one joins the tools, and is
found first: nvcc looks for `gcc` where itself lies before it looks anywhere else, and that folder is on PATH.
So make, CMake and torch's extensions take the same compiler, and no variable has to say so to each of them.
"""

from __future__ import annotations

import re

from torchkiln.matrix.facts import Facts
from torchkiln.model.cell import Cell
from torchkiln.model.operating_system import operating_system
from torchkiln.util.versions import numbers

TOOLS = ("cmake", "ninja-build", "g++", "gdb", "pkg-config", "git-lfs")

_NAME = re.compile(r"devel(?:-gcc(?P<gcc>\d+))?")


def tools_of(cell: Cell, facts: Facts) -> str | None:
    """The name of the tools of *cell*, "devel" or "devel-gcc11"; None: a runtime image has none."""
    if cell.flavor != "devel":
        return None
    # Of a CUDA that the facts do not name, the one before it tells: none took back a gcc.
    known = [cuda for cuda in facts.host_gcc if numbers(cuda) <= numbers(cell.cuda)]
    newest = facts.host_gcc[max(known, key=numbers)] if known else min(facts.host_gcc.values())
    return "devel" if operating_system(cell.os).gcc <= newest else f"devel-gcc{newest}"


def is_tools(name: str) -> bool:
    """Whether tools can be called *name*."""
    return _NAME.fullmatch(name) is not None


def host_gcc(name: str) -> str | None:
    """The version of the older gcc among the tools *name*, "11"; None: the OS's own will do.

    :raises ValueError: no tools have such a name.
    """
    if (found := _NAME.fullmatch(name)) is None:
        raise ValueError(f"no tools are called {name!r}")
    return found["gcc"]


def packages_of(name: str) -> tuple[str, ...]:
    """What is asked of the OS's archive for the tools *name*.

    :raises ValueError: no tools have such a name.
    """
    gcc = host_gcc(name)
    return (*TOOLS, *((f"gcc-{gcc}", f"g++-{gcc}") if gcc else ()))
