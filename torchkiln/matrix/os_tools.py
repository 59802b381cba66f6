"""Chooses the OS packages of a devel image's build tools, and the host compiler of its nvcc.

nvcc refuses a gcc that is newer than it supports. If the OS's gcc is too new, an older one is installed too,
and linked beside nvcc, where nvcc searches first. That folder is on PATH, so make, CMake and torch's
extensions use the same compiler without further variables.
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
    """The name of the tools of *cell*, "devel" or "devel-gcc11"; None: it is a runtime image."""
    if cell.flavor != "devel":
        return None
    # A CUDA that is not in the facts supports at least the gcc of the newest older CUDA.
    known = [cuda for cuda in facts.host_gcc if numbers(cuda) <= numbers(cell.cuda)]
    newest = facts.host_gcc[max(known, key=numbers)] if known else min(facts.host_gcc.values())
    return "devel" if operating_system(cell.os).gcc <= newest else f"devel-gcc{newest}"


def missing_compiler(cell: Cell, facts: Facts) -> str:
    """Why the OS has no compiler for the nvcc of *cell*, as a clause; empty: it has one."""
    name = tools_of(cell, facts)
    gcc = host_gcc(name) if name else None
    oldest = operating_system(cell.os).oldest_gcc
    if gcc is None or int(gcc) >= oldest:
        return ""
    return f"nvcc of CUDA {cell.cuda} needs gcc {gcc} or older; the oldest of {cell.os} is {oldest}"


def is_tools(name: str) -> bool:
    """Whether *name* is a valid name of tools."""
    return _NAME.fullmatch(name) is not None


def host_gcc(name: str) -> str | None:
    """The version of the older gcc in the tools *name*, "11"; None: the tools have only the OS's own gcc.

    :raises ValueError: *name* is invalid.
    """
    if (found := _NAME.fullmatch(name)) is None:
        raise ValueError(f"unknown tools {name!r}")
    return found["gcc"]


def packages_of(name: str) -> tuple[str, ...]:
    """The OS packages of the tools *name*.

    :raises ValueError: *name* is invalid.
    """
    gcc = host_gcc(name)
    return (*TOOLS, *((f"gcc-{gcc}", f"g++-{gcc}") if gcc else ()))
