"""Reads versions in the forms that people paste: `torch==2.7.1`, `v2.7`, `2.7.1+cu126`, `cu126`, `cp311`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select, split
from torchkiln.model.cell import Cell

Option = Literal["torch", "cuda", "python"]
_FORMS: Mapping[Option, re.Pattern[str]] = {
    "torch": re.compile(
        r"(?:(?:py)?torch(?:-v| *={1,3} *|[ -])?|v)?(\d(?:\.\d+)*)(?:\.\*)?(\+cu\d+)?(?:-cp\d.*\.whl)?"
    ),
    "cuda": re.compile(r"(?:cuda(?: version)?[ :_=-]*|cu|v)?(\d\d(?:\.\d+)?)(?:\.\d+)?|cu(\d\d)(\d)"),
    "python": re.compile(r"(?:c?python *-?|cp|py)?(3\.\d+)(?:\.\d+)?|(?:cp|py)(3)(\d+)"),
}


def plain(option: Option, text: str) -> str:
    """The version in *text*, a value of *option*: "12.6" for "cu126"; *text*, if it has another form."""
    found = _FORMS[option].fullmatch(text.strip().lower())
    parts = [part for part in found.groups() if part] if found else [text]
    return ("" if option == "torch" else ".").join(parts)  # of torch also the build: "2.7.1+cu126"


def option_of(name: str) -> Option | None:
    """Whether *name* is a version of CUDA, whose majors are higher, or of torch; None: it is no version."""
    options: tuple[Option, ...] = ("cuda", "torch")
    return next((option for option in options if _FORMS[option].fullmatch(name.strip().lower())), None)


def select_pasted(
    selection: Selection, matrix: Matrix, facts: Facts, *, must_name: bool = False
) -> tuple[Cell, ...]:
    """As `select`, for versions in every form. One torch or CUDA can also name a build by its CUDA.

    `2.7.1+cu126`, and CUDA 12.6, which this matrix may lack, are the cells with that build of torch.

    :raises ConfigError: as `select`; or no cell has the build.
    """
    torch, cuda, python = (
        tuple(
            ",".join(plain(option, part) for part in value.split(",")) for value in getattr(selection, option)
        )
        for option in _FORMS
    )
    read = wider = replace(selection, torch=torch, cuda=cuda, python=python)
    torch, cuda, build = split(torch), split(cuda), ""
    if len(torch) == 1 and "+" in torch[0]:
        release, _, build = torch[0].partition("+")
        wider = replace(read, torch=(release,))
    elif len(cuda) == 1 and not any(f"{each}.".startswith(f"{cuda[0]}.") for each in matrix.cudas):
        releases = facts.releases.values()
        build = {each.cuda: each.name for release in releases for each in release.variants}.get(cuda[0], "")
        wider = replace(read, cuda=())
    if not build:
        return select(read, matrix, must_name=must_name)
    builds = {cell: resolve(cell, matrix, facts).build for cell in select(wider, matrix)}
    if found := tuple(cell for cell, made in builds.items() if made and made.variant == build):
        return found
    if "+" not in "".join(torch):
        return select(read, matrix)  # raises: the matrix does not have this CUDA
    have = ", ".join(sorted({made.version for made in builds.values() if made}))
    raise ConfigError(f"--torch {torch[0]}: no image has this build", hint=f"the images have {have}")
