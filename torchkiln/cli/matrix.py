"""`torchkiln matrix add torch X`: what a new release needs in matrix.yaml and in the facts, from metadata."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.options import matrix_option
from torchkiln.errors import ConfigError
from torchkiln.index.offered import open_offered
from torchkiln.matrix import facts
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.add_release.compat_block import block, toolkit_line
from torchkiln.matrix.add_release.edit import with_pair, with_version
from torchkiln.matrix.add_release.propose import ReleaseMetadata, look_up
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import load
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic
from torchkiln.util.strict_json import read_file, text_of

_FACTS = "torchkiln/data/compat.yaml"
_LIMIT = 1 << 20  # bytes; it was read as a matrix before


@click.group("matrix")
def matrix() -> None:
    """Propose what matrix.yaml and the facts need for a release that they lack."""


@matrix.command("add")
@click.argument("package", type=click.Choice(["torch"]))
@click.argument("version", metavar="VERSION")
@click.option("--write", is_flag=True, help="put the proposed lines into matrix.yaml")
@matrix_option
def add(package: str, version: str, write: bool, matrix_file: Path) -> None:
    """Print the lines for a torch release: matrix.yaml's, and the block of facts if there is none yet.

    All of it is read from the index's metadata. Nothing is written without --write, and facts never are.
    """
    known = facts.load()
    grid = matrix_of.read(matrix_file, known)
    if version in grid.releases:
        click.echo(f"matrix: {matrix_file} has {package} {version}; nothing to add", err=True)
        return
    told = look_up(version, open_offered(os.environ, Store(cache_root(), on_wait=waiting)))
    beyond = told.cuda not in grid.cuda  # then it stands alone: the other releases have no wheel of that CUDA
    _print(told, known, beyond=beyond)
    if write:
        _write(matrix_file, told, known, beyond=beyond)
    else:
        click.echo(f"matrix: nothing was written; with --write these lines go into {matrix_file}", err=True)


def _print(told: ReleaseMetadata, known: Facts, *, beyond: bool) -> None:
    if beyond:
        click.echo(f'# matrix.yaml, under beyond:\n  - {{torch: "{told.version}", cuda: "{told.cuda}"}}')
    else:
        click.echo(f'# matrix.yaml, under torch:\n  - "{told.version}"')
    if told.version not in known.releases:
        click.echo(f"# {_FACTS}, under releases:\n{block(told)}", nl=False)
    if toolkit := toolkit_line(told, known):
        click.echo(f"# {_FACTS}, under cuda:\n{toolkit}", nl=False)


def _write(matrix_file: Path, told: ReleaseMetadata, known: Facts, *, beyond: bool) -> None:
    """Put the line into the file.

    :raises ConfigError: the facts lack what the matrix would name, or its text has no place for a line.
    """
    missing = [f"torch {told.version}"] if told.version not in known.releases else []
    missing += [f"CUDA {told.cuda}"] if told.cuda not in known.cuda else []
    if missing:
        raise ConfigError(
            f"{_FACTS} knows nothing of {' and '.join(missing)}; nothing was written to {matrix_file}",
            hint="put in what stands above, fill in each TODO, and run again",
        )
    text = text_of(read_file(matrix_file, _LIMIT))
    if beyond:
        text = with_pair(text, told.version, told.cuda, name=str(matrix_file))
    else:
        text = with_version(text, "torch", told.version, name=str(matrix_file))
    if (told.version, told.cuda) not in load(text, known, name=str(matrix_file)).pairs:
        raise ConfigError(
            f"{matrix_file}: {told.version} did not come to stand there", hint="write it by hand"
        )
    write_atomic(matrix_file, text.encode(), mode=matrix_file.stat().st_mode & 0o777)
    click.echo(f"matrix: wrote {matrix_file}; then: torchkiln lock --torch {told.version}", err=True)
