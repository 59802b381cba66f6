"""The options that choose cells → the cells, or the tags of their images."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.options import matrix_option
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
class Chosen:
    """What `selection`'s options said."""

    torch: tuple[str, ...]
    cuda: tuple[str, ...]
    flavor: tuple[str, ...]
    os_names: tuple[str, ...]
    beside: tuple[str, ...]
    every: bool
    lockable: bool
    matrix_file: Path
    _read: list[tuple[Matrix, Facts]] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def any(self) -> bool:
        """Whether one of the options was given that choose."""
        named = (self.torch, self.cuda, self.flavor, self.os_names, self.beside)
        return bool(any(named) or self.every or self.lockable)

    def selection(self) -> Selection:
        """The same for `select`."""
        return Selection(
            torch=self.torch,
            cuda=self.cuda,
            flavor=self.flavor,
            os=self.os_names,
            components=self.beside,
            every=self.every,
        )

    def grid(self) -> tuple[Matrix, Facts]:
        """The matrix that was named, and what we know; read once, whoever asks.

        :raises ConfigError: one of the files is missing, or wrong.
        """
        if self._read:
            return self._read[0]
        known = facts.load()
        if file := os.environ.get(cuda_redist.VARIABLE):
            known = replace(known, redist=cuda_redist.read(Path(file)))
        self._read.append((matrix.read(self.matrix_file, known), known))
        return self._read[0]

    def cells(self, *, must_name: bool = False) -> tuple[tuple[Cell, ...], Matrix, Facts]:
        """The chosen cells in the matrix's order, with `grid`.

        :param must_name: refuse options that name neither torch nor CUDA nor every cell.
        :raises ConfigError: a value that the matrix does not have; all such values.
        :raises NothingSelected: an option without a value, or *must_name*; --lockable, and none is.
        """
        matrix, facts = self.grid()
        found = select(self.selection(), matrix, must_name=must_name and not self.lockable)
        for name in everywhere(self.selection(), matrix):
            click.echo(f"--with {name}: every image has it already", err=True)
        if not self.lockable:
            return found, matrix, facts
        lockable = tuple(cell for cell in found if resolve(cell, matrix, facts).lockable)
        if not lockable:
            raise NothingSelected(
                "none of the chosen cells can be locked from the default index alone",
                hint="`list` shows which can",
            )
        return lockable, matrix, facts

    def tags(self) -> list[str]:
        """The tags of the chosen cells' images; of several cells, those that can be built.

        :raises Unresolvable: one cell is chosen, and cannot.
        """
        cells, matrix, facts = self.cells(must_name=True)
        found = [resolve(cell, matrix, facts) for cell in cells]
        if len(found) == 1:
            require_buildable(found[0])
        return [tag_of(one) for one in found if one.build is not None]

    def tag(self, doing: str) -> str:
        """The tag of the one chosen cell's image.

        :param doing: for the error: the command, which takes one image.
        :raises ConfigError: several are chosen.
        :raises Unresolvable: it cannot be built.
        """
        tags = self.tags()
        if len(tags) != 1:
            raise ConfigError(
                f"{doing} takes one image, the selection means {len(tags)}",
                hint="name one --torch and one --cuda" + (f"; or one of: {', '.join(tags)}" if tags else ""),
            )
        return tags[0]


def selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose cells; --torch, --cuda, --flavor, --os and --with may come several times.

    *command* gets them together, as the argument `chosen`.
    """

    @functools.wraps(command)
    def with_chosen(*arguments: Any, **named: Any) -> Any:
        chosen = Chosen(**{one.name: named.pop(one.name) for one in fields(Chosen) if one.init})
        return command(*arguments, chosen=chosen, **named)

    for option in (
        click.option("--torch", "torch", multiple=True, metavar="X[,Y]", help="torch releases: 2.7 or 2.7.1"),
        click.option("--cuda", "cuda", multiple=True, metavar="X[,Y]", help="CUDA versions: 12.1"),
        click.option("--flavor", "flavor", multiple=True, metavar="F", help="runtime (default), devel"),
        click.option("--os", "os_names", multiple=True, metavar="OS", help=_SYSTEMS),
        click.option(
            "--with",
            "beside",
            multiple=True,
            metavar="C[,C]",
            help="with components: conda, transformers",
        ),
        click.option("--all", "every", is_flag=True, help="every cell of the matrix"),
        click.option("--lockable", is_flag=True, help="of these, what the default index alone gives"),
        matrix_option,
    ):
        with_chosen = option(with_chosen)
    return with_chosen
