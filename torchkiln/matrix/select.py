"""Selection -> Cells: which squares of the matrix somebody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix import components
from torchkiln.matrix.matrix import Matrix, Pair
from torchkiln.model.cell import Cell
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.util.versions import DOTTED, nearest, newest, numbers

DEFAULT_FLAVOR = "runtime"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What the command line named. A value may hold several, comma-separated; an empty tuple: not named."""

    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    flavor: tuple[str, ...] = ()
    os: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    every: bool = False


def select(selection: Selection, matrix: Matrix, *, must_name: bool = False) -> tuple[Cell, ...]:
    """The cells of *matrix* that *selection* means, in the matrix's order, each once.

    A version's prefix means the newest that it fits and that goes with the other: ``2.7`` the newest 2.7, and
    with it ``12`` the newest CUDA 12 of that. Not named: every torch and CUDA, the runtime flavor, debian12;
    with ``every``: all of them. No cell has components but those that are named, and then each has them.

    :param must_name: refuse a selection that names neither torch nor CUDA nor every cell.
    :raises ConfigError: a value that the matrix does not have; all such values.
    :raises NothingSelected: an option without a value, or *must_name*.
    """
    os_names = tuple(choice.name for choice in matrix.os)
    named = {
        option: _split(values)
        for option, values in (
            ("torch", selection.torch),
            ("cuda", selection.cuda),
            ("flavor", selection.flavor),
            ("os", selection.os),
            ("with", selection.components),
        )
        if values
    }
    if empty := [f"--{option}" for option, values in named.items() if not values]:
        raise NothingSelected(
            f"{', '.join(empty)}: no value given", hint="leave the option out to take its default, or --all"
        )
    if must_name and not (selection.every or "torch" in named or "cuda" in named):
        raise NothingSelected(
            "nothing selected", hint="name --torch and --cuda, or --all; `list` shows what there is"
        )
    faults: list[str] = []
    torches = _fitting("torch", named.get("torch"), matrix.releases, faults)
    cudas = _fitting("cuda", named.get("cuda"), matrix.cudas, faults)
    torch = _newest(torches, {one for one, other in matrix.pairs if any(other in some for some in cudas)})
    cuda = _newest(cudas, {other for one, other in matrix.pairs if one in torch})
    flavors = _words("flavor", named.get("flavor"), matrix.flavors, DEFAULT_FLAVOR, selection.every, faults)
    systems = _words("os", named.get("os"), os_names, DEFAULT_OS, selection.every, faults)
    beside, _, strangers = components.named(named.get("with", ()), matrix.components, matrix.packages)
    offered = [offer.name for offer in matrix.components]
    for name in strangers:
        near = ", ".join(nearest(name[:40], offered) or offered) or "none"
        faults.append(f"--with {name}: matrix.yaml has no such component; nearest: {near}")
    pairs = [pair for pair in matrix.pairs if pair[0] in torch and pair[1] in cuda]
    if "torch" in named and "cuda" in named:
        faults += _strangers(torch, cuda, pairs, matrix)
    if faults:
        raise ConfigError.of(faults, hint="`list --all` shows every cell of the matrix")
    return tuple(
        Cell(
            torch=one_torch,
            cuda=one_cuda,
            flavor=flavor,
            os=choice.name,
            python=choice.python,
            components=beside,
        )
        for (one_torch, one_cuda), flavor, choice in product(
            pairs,
            (flavor for flavor in matrix.flavors if flavor in flavors),
            (choice for choice in matrix.os if choice.name in systems),
        )
    )


def everywhere(selection: Selection, matrix: Matrix) -> tuple[str, ...]:
    """What of the components that *selection* names every image has anyway: they add nothing."""
    return components.named(_split(selection.components), matrix.components, matrix.packages)[1]


def all_cells(matrix: Matrix) -> tuple[Cell, ...]:
    """Every cell of *matrix*."""
    return select(Selection(every=True), matrix)


def _split(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _fitting(
    option: str, named: Sequence[str] | None, valid: Sequence[str], faults: list[str]
) -> list[list[str]]:
    """For each of *named* the versions that it fits; not named: each valid one fits itself."""
    if named is None:
        return [[version] for version in valid]
    found = []
    for value in named:
        fitting = [version for version in valid if version == value or version.startswith(f"{value}.")]
        if fitting:
            found.append(fitting)
        else:
            form = "" if DOTTED.fullmatch(value) else " (not a version)"
            near = ", ".join(nearest(value, valid)) or ", ".join(valid)
            faults.append(f"--{option} {value}: not in the matrix{form}; nearest: {near}")
    return found


def _newest(fitting: list[list[str]], paired: set[str]) -> set[str]:
    """The newest of each that is *paired*; where none is, the newest, so that it can be told."""
    return {newest([one for one in some if one in paired] or some) for some in fitting}


def _strangers(torch: set[str], cuda: set[str], pairs: list[Pair], matrix: Matrix) -> list[str]:
    """What was named and has no cell with anything else that was."""
    told = []
    for version in sorted(torch - {one for one, _ in pairs}, key=numbers):
        known = ", ".join(other for one, other in matrix.pairs if one == version)
        told.append(f"--torch {version}: not in the matrix with the CUDA that is named; with CUDA {known}")
    for version in sorted(cuda - {other for _, other in pairs}, key=numbers):
        known = ", ".join(one for one, other in matrix.pairs if other == version)
        told.append(f"--cuda {version}: not in the matrix with the torch that is named; with torch {known}")
    return told


def _words(
    option: str,
    named: Sequence[str] | None,
    valid: Sequence[str],
    default: str,
    every: bool,
    faults: list[str],
) -> set[str]:
    if named is None:
        # A matrix without the usual default falls back on what it names first.
        return set(valid) if every else {default if default in valid else valid[0]}
    for value in named:
        if value not in valid:
            near = nearest(value, valid)
            told = f"nearest: {', '.join(near)}" if near else f"there is: {', '.join(valid)}"
            faults.append(f"--{option} {value}: not in the matrix; {told}")
    return set(named)
