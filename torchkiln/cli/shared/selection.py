"""Defines the options that select cells, and returns the cells or the tags of their images."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from torchkiln.cli.shared.completing import CUDA, FLAVOR, GPUS, OS, PYTHON, TORCH
from torchkiln.cli.shared.options import Decorator, gathered, matrix_option, own_matrix_option
from torchkiln.cli.shared.targets import names_argument, tag_named
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix import cuda_redist, facts, matrix
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.pick import kept_gpus
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import Selection, option_of, select_pasted
from torchkiln.matrix.tags import cell_named, find_cell, tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS

_SYSTEMS = ", ".join(f"{name} (default)" if name == DEFAULT_OS else name for name in SYSTEMS)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellOptions:
    """The values of the options that select cells, and of the arguments that name cells."""

    matrix_file: Path
    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    flavor: tuple[str, ...] = ()
    os_names: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    platform: tuple[str, ...] = ()
    every: bool = False
    lockable: bool = False
    kept_gpus: tuple[str, ...] = ()  # --gpus of thin images; in two commands --gpus has another meaning
    own_use: bool = False
    names: tuple[str, ...] = ()  # the arguments that name cells: tags, aliases, DIR:REF
    _read: list[tuple[Matrix, Facts]] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def any(self) -> bool:
        """Whether a cell is named or one of these options was used; --matrix alone does not count."""
        named = (self.names, self.torch, self.cuda, self.flavor, self.os_names, self.python, self.platform)
        return bool(any(named) or self.kept_gpus or self.own_use or self.every or self.lockable)

    def selection(self) -> Selection:
        """The same values as the argument of `select`.

        :raises ConfigError: a GPU is unknown, or --own-use is used without --gpus.
        """
        if self.own_use and not self.kept_gpus:
            raise ConfigError(
                "--own-use requires --gpus", hint="name the GPUs of the image, for example --gpus 9.0"
            )
        return Selection(
            torch=self.torch,
            cuda=self.cuda,
            flavor=self.flavor,
            os=self.os_names,
            python=self.python,
            platform=self.platform,
            gpus=kept_gpus(self.kept_gpus, self.grid()[1]) if self.kept_gpus else (),
            own_use=self.own_use,
            every=self.every,
        )

    def grid(self) -> tuple[Matrix, Facts]:
        """The matrix that was named, and the facts; the files are read once.

        :raises ConfigError: one of the files is missing or wrong.
        """
        if self._read:
            return self._read[0]
        known = facts.load(self.matrix_file)
        if file := os.environ.get(cuda_redist.VARIABLE):
            known = replace(known, redist=cuda_redist.read(Path(file)))
        self._read.append((matrix.read(self.matrix_file, known), known))
        return self._read[0]

    def cells(self, *, must_name: bool = False) -> tuple[tuple[Cell, ...], Matrix, Facts]:
        """The named cells, then the selected cells in the matrix's order, each once; with matrix and facts.

        :param must_name: refuse options that name neither torch nor CUDA nor every cell, unless the matrix
            has only one torch with one CUDA.
        :raises ConfigError: the matrix does not have a name or a value; the message lists every such value.
        :raises NothingSelected: an option has no value; or *must_name* refuses the options; or no cell is
            lockable, with --lockable.
        """
        matrix, facts = self.grid()
        several = len(matrix.pairs) > 1 and not self.lockable
        named, selection = [], self.selection()
        for name in self.names:
            option = None if Path(name).exists() or find_cell(name, matrix, facts) else option_of(name)
            if option is None:
                named.append(cell_named(tag_named(name), matrix, facts))
            elif option == "torch":
                selection = replace(selection, torch=(*selection.torch, name))
            else:
                selection = replace(selection, cuda=(*selection.cuda, name))
        found = tuple(named)
        if not found:
            found = select_pasted(selection, matrix, facts, must_name=must_name and several)
        elif selection.torch or selection.cuda or self.every:
            found = tuple(dict.fromkeys((*found, *select_pasted(selection, matrix, facts))))
        elif self.flavor or self.os_names or self.python or self.platform or self.kept_gpus or self.own_use:
            raise ConfigError(
                "--flavor, --os, --python, --platform and --gpus cannot be used with a TAG",
                hint=f"leave them out, or name the cell by options instead of {self.names[0]}",
            )
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
        """The tags of the selected cells' images. Of several cells, those that cannot be built are left out.

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
                f"{command} takes one image, but the options select {len(tags)}",
                hint="name one --torch and one --cuda" + (f"; or one of: {', '.join(tags)}" if tags else ""),
            )
        return tags[0]


def _refuse_with(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> None:
    """:raises ConfigError: --with is used, an option of earlier versions."""
    if values:
        raise ConfigError(
            f"--with {values[0]}: this option was removed; a project adds packages to an image",
            hint="add the packages to DIR/requirements.txt, and use torchkiln project (see docs/projects.md);"
            " examples/projects has examples for transformers, flash-attn and conda",
        )


_OF_THIN_IMAGES = (
    click.option(
        "--gpus",
        "kept_gpus",
        multiple=True,
        metavar="G[,G]",
        shell_complete=GPUS,
        help="thin images: keep only the device code for these GPUs, such as 9.0 or H100",
    ),
    click.option(
        "--own-use",
        is_flag=True,
        help="with --gpus: also cut NVIDIA's libraries; their licence may not let you distribute the image",
    ),
)


def _selection(of_matrix: Decorator = matrix_option, *, named: bool = False, gpus: bool = True) -> Decorator:
    """The options that select cells; a command receives them together, as the argument `chosen`.

    :param named: also add names of cells as arguments, which become part of `chosen`.
    :param gpus: add the options of thin images, too.
    """
    return gathered(
        "chosen",
        CellOptions,
        *((names_argument,) if named else ()),
        click.option(
            "--torch",
            multiple=True,
            metavar="X[,Y]",
            shell_complete=TORCH,
            help="torch releases, for example 2.7 or 2.7.1",
        ),
        click.option(
            "--cuda",
            multiple=True,
            metavar="X[,Y]",
            shell_complete=CUDA,
            help="CUDA versions, for example 12.1",
        ),
        click.option(
            "--flavor", multiple=True, metavar="F", shell_complete=FLAVOR, help="runtime (default), devel"
        ),
        click.option("--os", "os_names", multiple=True, metavar="OS", shell_complete=OS, help=_SYSTEMS),
        click.option(
            "--python",
            multiple=True,
            metavar="X.Y",
            shell_complete=PYTHON,
            help="the operating systems that have this Python, for example 3.13",
        ),
        click.option("--platform", multiple=True, metavar="P", help="linux/amd64 (default), linux/arm64"),
        click.option("--with", multiple=True, hidden=True, expose_value=False, callback=_refuse_with),
        *(_OF_THIN_IMAGES if gpus else ()),
        click.option("--all", "every", is_flag=True, help="every cell of the matrix"),
        click.option("--lockable", is_flag=True, help="only cells whose wheels are all on the default index"),
        of_matrix,
        without=(*(() if named else ("names",)), *(() if gpus else ("kept_gpus", "own_use"))),
    )


selection = _selection()
#: As `selection`, and names of cells as arguments.
cell_selection = _selection(named=True)
#: For commands that write the locks and files of a matrix: not of an installation's.
own_cell_selection = _selection(own_matrix_option, named=True)
#: As `selection` without --gpus, which in such a command names the GPUs to use.
selection_for_running = _selection(gpus=False)
