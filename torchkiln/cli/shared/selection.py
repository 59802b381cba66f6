"""Defines the options that select cells, and returns the cells or the tags of their images."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.options import matrix_option, options
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix import cuda_redist, facts, matrix
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import Selection, everywhere, select
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS

_SYSTEMS = ", ".join(f"{name} (default)" if name == DEFAULT_OS else name for name in SYSTEMS)


@dataclass(frozen=True, slots=True)
class CellOptions:
    """The values of the options that select cells."""

    torch: tuple[str, ...]
    cuda: tuple[str, ...]
    flavor: tuple[str, ...]
    os_names: tuple[str, ...]
    components: tuple[str, ...]
    every: bool
    lockable: bool
    matrix_file: Path
    _read: list[tuple[Matrix, Facts]] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def any(self) -> bool:
        """Whether one of these options was used; --matrix alone does not count."""
        named = (self.torch, self.cuda, self.flavor, self.os_names, self.components)
        return bool(any(named) or self.every or self.lockable)

    def selection(self) -> Selection:
        """The same values as `select` takes them."""
        return Selection(
            torch=self.torch,
            cuda=self.cuda,
            flavor=self.flavor,
            os=self.os_names,
            components=self.components,
            every=self.every,
        )

    def grid(self) -> tuple[Matrix, Facts]:
        """The matrix that was named, and the facts; the files are read once.

        :raises ConfigError: one of the files is missing or wrong.
        """
        if self._read:
            return self._read[0]
        known = facts.load()
        if file := os.environ.get(cuda_redist.VARIABLE):
            known = replace(known, redist=cuda_redist.read(Path(file)))
        self._read.append((matrix.read(self.matrix_file, known), known))
        return self._read[0]

    def cells(self, *, must_name: bool = False) -> tuple[tuple[Cell, ...], Matrix, Facts]:
        """The selected cells in the matrix's order, with `grid`.

        :param must_name: refuse options that name neither torch nor CUDA nor every cell.
        :raises ConfigError: values that the matrix does not have; all of them are listed.
        :raises NothingSelected: an option without a value; *must_name*; --lockable, and no cell is lockable.
        """
        matrix, facts = self.grid()
        found = select(self.selection(), matrix, must_name=must_name and not self.lockable)
        for name in everywhere(self.selection(), matrix):
            click.echo(f"--with {name}: ignored: every image has it already", err=True)
        if not self.lockable:
            return found, matrix, facts
        lockable = tuple(cell for cell in found if resolve(cell, matrix, facts).lockable)
        if not lockable:
            raise NothingSelected(
                "none of the selected cells can be locked from the default index alone",
                hint="torchkiln list --lockable shows the cells that can",
            )
        return lockable, matrix, facts

    def tags(self) -> list[str]:
        """The tags of the selected cells' images; of several cells, those that can be built.

        :raises Unresolvable: one cell is selected, and it cannot be built.
        """
        cells, matrix, facts = self.cells(must_name=True)
        found = [resolve(cell, matrix, facts) for cell in cells]
        if len(found) == 1:
            require_buildable(found[0])
        return [tag_of(resolution) for resolution in found if resolution.build is not None]

    def tag(self, command: str) -> str:
        """The tag of the one selected cell's image.

        :param command: the name of the command that takes one image, for the error.
        :raises ConfigError: several cells are selected.
        :raises Unresolvable: the cell cannot be built.
        """
        tags = self.tags()
        if len(tags) != 1:
            raise ConfigError(
                f"{command} takes one image, the options select {len(tags)}",
                hint="name one --torch and one --cuda" + (f"; or one of: {', '.join(tags)}" if tags else ""),
            )
        return tags[0]


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select cells; *command* receives them together, as the argument `chosen`."""

    @functools.wraps(command)
    def with_chosen(*arguments: Any, **named: Any) -> Any:
        chosen = CellOptions(**{each.name: named.pop(each.name) for each in fields(CellOptions) if each.init})
        return command(*arguments, chosen=chosen, **named)

    add = options(
        click.option(
            "--torch", multiple=True, metavar="X[,Y]", help="torch releases, for example 2.7 or 2.7.1"
        ),
        click.option("--cuda", multiple=True, metavar="X[,Y]", help="CUDA versions, for example 12.1"),
        click.option("--flavor", multiple=True, metavar="F", help="runtime (default), devel"),
        click.option("--os", "os_names", multiple=True, metavar="OS", help=_SYSTEMS),
        click.option(
            "--with", "components", multiple=True, metavar="C[,C]", help="components: conda, transformers"
        ),
        click.option("--all", "every", is_flag=True, help="every cell of the matrix"),
        click.option("--lockable", is_flag=True, help="only cells whose wheels are all on the default index"),
        matrix_option,
    )
    decorated: Callable[..., Any] = add(with_chosen)
    return decorated
