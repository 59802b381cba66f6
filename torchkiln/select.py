"""Selection -> Cells: which squares of the matrix somebody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix import Matrix
from torchkiln.nouns import Cell
from torchkiln.tags import DEFAULT_OS
from torchkiln.versions import DOTTED, nearest, newest

DEFAULT_FLAVOR = "runtime"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What the command line named. A value may hold several, comma-separated; an empty tuple: not named."""

    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    flavor: tuple[str, ...] = ()
    os: tuple[str, ...] = ()
    every: bool = False


def select(selection: Selection, matrix: Matrix, *, must_name: bool = False) -> tuple[Cell, ...]:
    """The cells of *matrix* that *selection* means, in the matrix's order, each once.

    A version's prefix means the newest that it fits: ``2.7`` the newest 2.7. Not named: every torch and
    CUDA, the runtime flavor, debian12; with ``every``: all of them.

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
    torch = _versions("torch", named.get("torch"), matrix.torch, faults)
    cuda = _versions("cuda", named.get("cuda"), matrix.cuda, faults)
    flavors = _words("flavor", named.get("flavor"), matrix.flavors, DEFAULT_FLAVOR, selection.every, faults)
    systems = _words("os", named.get("os"), os_names, DEFAULT_OS, selection.every, faults)
    if faults:
        raise ConfigError.of(faults, hint="`list --all` shows every cell of the matrix")
    return tuple(
        Cell(torch=one_torch, cuda=one_cuda, flavor=flavor, os=choice.name, python=choice.python)
        for one_torch, one_cuda, flavor, choice in product(
            (version for version in matrix.torch if version in torch),
            (version for version in matrix.cuda if version in cuda),
            (flavor for flavor in matrix.flavors if flavor in flavors),
            (choice for choice in matrix.os if choice.name in systems),
        )
    )


def all_cells(matrix: Matrix) -> tuple[Cell, ...]:
    """Every cell of *matrix*."""
    return select(Selection(every=True), matrix)


def _split(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _versions(option: str, named: Sequence[str] | None, valid: Sequence[str], faults: list[str]) -> set[str]:
    if named is None:
        return set(valid)
    found = set()
    for value in named:
        fitting = [version for version in valid if version == value or version.startswith(f"{value}.")]
        if fitting:
            found.add(newest(fitting))
        else:
            form = "" if DOTTED.fullmatch(value) else " (not a version)"
            near = ", ".join(nearest(value, valid)) or ", ".join(valid)
            faults.append(f"--{option} {value}: not in the matrix{form}; nearest: {near}")
    return found


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
