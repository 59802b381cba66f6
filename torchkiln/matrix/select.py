"""Selects cells of the matrix by the options of the command line.

Versions may have the forms that people paste: `torch==2.7.1`, `v2.7`, `2.7.1+cu126`, `cu126`, `cp311`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, Pair
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell
from torchkiln.model.device_code import Gpus
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.util.versions import DOTTED, minor_of, nearest, newest, numbers

DEFAULT_FLAVOR = "runtime"
_OPTIONS = ("torch", "cuda", "flavor", "os", "python", "platform")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The selection options. A value may be a comma-separated list; an empty tuple: not given."""

    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    flavor: tuple[str, ...] = ()
    os: tuple[str, ...] = ()
    python: tuple[str, ...] = ()  # "3.13": the systems of the matrix that have it
    platform: tuple[str, ...] = ()  # "linux/arm64"
    gpus: Gpus = ()  # of thin images; (): images for all GPUs, and with `every` for the matrix's `gpus`
    own_use: bool = False
    every: bool = False


def select(selection: Selection, matrix: Matrix, *, must_name: bool = False) -> tuple[Cell, ...]:
    """The cells of *matrix* that match *selection*, in the matrix's order, each once.

    A version prefix selects the newest matching version that has a cell with the other option: torch ``2.7``
    selects the newest 2.7, and CUDA ``12`` the newest CUDA 12 of that release. torch ``2`` is ambiguous.
    Defaults: every torch and CUDA, the runtime flavor, debian12 or the systems with the named Python, and
    linux/amd64. ``every`` selects all flavors, systems, and platforms that have the torch. Each cell gets the
    named GPUs.

    :param must_name: refuse a selection with neither torch nor CUDA nor ``every``.
    :raises ConfigError: lists all values that are ambiguous or that the matrix does not have.
    :raises NothingSelected: an option has no value, or *must_name* applies.
    """
    os_names = tuple(choice.name for choice in matrix.os)
    named = {option: split(values) for option in _OPTIONS if (values := getattr(selection, option))}
    if empty := [f"--{option}" for option, values in named.items() if not values]:
        raise NothingSelected(
            f"{', '.join(empty)}: a value is required",
            hint="omit the option to use its default, or use --all",
        )
    if must_name and not (selection.every or "torch" in named or "cuda" in named):
        raise NothingSelected(
            "nothing selected", hint="use --torch and --cuda, or --all; `torchkiln list` shows the cells"
        )
    faults: list[str] = []
    torch_matches = _matches("torch", named.get("torch"), matrix.releases, faults)
    cuda_matches = _matches("cuda", named.get("cuda"), matrix.cudas, faults)
    paired = {torch for torch, cuda in matrix.pairs if any(cuda in matches for matches in cuda_matches)}
    torches = _newest(torch_matches, paired)
    cudas = _newest(cuda_matches, {cuda for torch, cuda in matrix.pairs if torch in torches})
    flavors = _words("flavor", named.get("flavor"), matrix.flavors, DEFAULT_FLAVOR, selection.every, faults)
    # A Python alone selects every system that has it.
    every_system = selection.every or "python" in named
    systems = _words("os", named.get("os"), os_names, DEFAULT_OS, every_system, faults)
    every_platform = selection.every and "platform" not in named
    platforms = _words(
        "platform", named.get("platform"), matrix.platforms, DEFAULT_PLATFORM, every_platform, faults
    )
    systems = _with_python(named.get("python"), systems, matrix, faults)
    pairs = [(torch, cuda) for torch, cuda in matrix.pairs if torch in torches and cuda in cudas]
    if "torch" in named and "cuda" in named and not faults:  # an unknown torch has no cell with any CUDA
        faults += _unpaired(torches, cudas, pairs, matrix)
    if faults:
        raise ConfigError.of(faults, hint="`torchkiln list --all` shows every cell of the matrix")
    return tuple(
        Cell(
            torch=torch,
            cuda=cuda,
            flavor=flavor,
            os=choice.name,
            python=choice.python,
            gpus=gpus,
            own_use=selection.own_use,
            platform=platform,
        )
        for (torch, cuda), flavor, choice, gpus, platform in product(
            pairs,
            (flavor for flavor in matrix.flavors if flavor in flavors),
            (choice for choice in matrix.os if choice.name in systems),
            ((), *matrix.gpus) if selection.every and not selection.gpus else (selection.gpus,),
            (platform for platform in matrix.platforms if platform in platforms),
        )
        if not every_platform or numbers(torch) >= numbers(PLATFORMS[platform].first_torch)
    )


def with_thin(cells: Iterable[Cell], matrix: Matrix) -> tuple[Cell, ...]:
    """*cells*, each followed by a thin cell for each entry of the matrix's `gpus`; without duplicates."""
    found = (
        variant for cell in cells for variant in (cell, *(replace(cell, gpus=gpus) for gpus in matrix.gpus))
    )
    return tuple(dict.fromkeys(found))


def all_cells(matrix: Matrix) -> tuple[Cell, ...]:
    return select(Selection(every=True), matrix)


def split(values: Iterable[str]) -> tuple[str, ...]:
    """`("2.6,2.7", "2.8")` as `("2.6", "2.7", "2.8")`."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _matches(
    option: str, named: Sequence[str] | None, valid: Sequence[str], faults: list[str]
) -> list[list[str]]:
    """For each of *named* the versions that match; if it is None, each valid version alone."""
    if named is None:
        return [[version] for version in valid]
    found = []
    for value in named:
        matches = [version for version in valid if version == value or version.startswith(f"{value}.")]
        if option == "torch" and "." not in value and len({minor_of(version) for version in matches}) > 1:
            faults.append(f"--torch {value}: ambiguous; the matrix has {', '.join(matches)}")
        elif matches:
            found.append(matches)
        else:
            form = "" if DOTTED.fullmatch(value) else " (not a version)"
            near = ", ".join(nearest(value, valid)) or ", ".join(valid)
            faults.append(f"--{option} {value}: not in the matrix{form}; nearest: {near}")
    return found


def _newest(lists: list[list[str]], paired: set[str]) -> set[str]:
    """For each list the newest version that is *paired*; if none is, the newest, for the error message."""
    return {newest([version for version in some if version in paired] or some) for some in lists}


def _unpaired(torches: set[str], cudas: set[str], pairs: list[Pair], matrix: Matrix) -> list[str]:
    """A message for each selected version that has no cell with the other selected versions."""
    found = []
    for version in sorted(torches - {torch for torch, _ in pairs}, key=numbers):
        known = ", ".join(cuda for torch, cuda in matrix.pairs if torch == version)
        found.append(f"--torch {version}: not in the matrix with this CUDA, only with CUDA {known}")
    for version in sorted(cudas - {cuda for _, cuda in pairs}, key=numbers):
        known = ", ".join(torch for torch, cuda in matrix.pairs if cuda == version)
        found.append(f"--cuda {version}: not in the matrix with this torch, only with torch {known}")
    return found


def _with_python(
    named: Sequence[str] | None, systems: set[str], matrix: Matrix, faults: list[str]
) -> set[str]:
    """Filter *systems* by their Python version. Without *named*, return all of them."""
    if named is None:
        return systems
    known = {choice.name: choice.python for choice in matrix.os if choice.name in systems}
    for version in named:
        if known and version not in known.values():
            has = ", ".join(f"{name} has {python}" for name, python in known.items())
            faults.append(f"--python {version}: no selected operating system has it: {has}")
    return {name for name, python in known.items() if python in named}


def _words(
    option: str,
    named: Sequence[str] | None,
    valid: Sequence[str],
    default: str,
    every: bool,
    faults: list[str],
) -> set[str]:
    if named is None:
        # If the matrix lacks the default, its first value is used.
        return set(valid) if every else {default if default in valid else valid[0]}
    for value in named:
        if value not in valid:
            near = nearest(value, valid)
            known = f"nearest: {', '.join(near)}" if near else f"valid: {', '.join(valid)}"
            faults.append(f"--{option} {value}: not in the matrix; {known}")
    return set(named)


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
