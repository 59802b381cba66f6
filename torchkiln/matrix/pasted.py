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
    """The version in *text*, a value of *option*: "12.6" for "cu126"; *text*, if it has another form.

    Of torch also the name of the build: "2.7.1+cu126".
    """
    found = _FORMS[option].fullmatch(text.strip().lower())
    if found is None:
        return text
    parts = [part for part in found.groups() if part]
    return "".join(parts) if option == "torch" else ".".join(parts)


def _plain(option: Option, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(",".join(plain(option, part) for part in value.split(",")) for value in values)


def as_selection(name: str) -> Selection | None:
    """A selection for *name* if it is a version: of CUDA if its major is as high as CUDA's; else None."""
    options: tuple[Option, ...] = ("cuda", "torch")
    for option in options:
        if _FORMS[option].fullmatch(name.strip().lower()):
            version = plain(option, name)
            return Selection(torch=(version,)) if option == "torch" else Selection(cuda=(version,))
    return None


def select_pasted(
    selection: Selection, matrix: Matrix, facts: Facts, *, must_name: bool = False
) -> tuple[Cell, ...]:
    """As `select`, for versions in every form. One torch or CUDA can also name a build by its CUDA.

    `2.7.1+cu126`, and CUDA 12.6, which this matrix may lack, are the cells with that build of torch.

    :raises ConfigError: as `select`; or no cell has the build.
    """
    read = replace(
        selection,
        torch=_plain("torch", selection.torch),
        cuda=_plain("cuda", selection.cuda),
        python=_plain("python", selection.python),
    )
    torch, cuda, build, wider = split(read.torch), split(read.cuda), "", read
    if len(torch) == 1 and "+" in torch[0]:
        release, _, build = torch[0].partition("+")
        wider = replace(read, torch=(release,))
    elif len(cuda) == 1 and not any(f"{each}.".startswith(f"{cuda[0]}.") for each in matrix.cudas):
        variants = (variant for release in facts.releases.values() for variant in release.variants)
        build = {variant.cuda: variant.name for variant in variants}.get(cuda[0], "")
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
