"""`torchkiln matrix add torch X`: proposes lines for a new release, from the index's metadata."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import matrix_option, mirror_option
from torchkiln.cli.shared.program import as_typed
from torchkiln.errors import ConfigError
from torchkiln.index.offered import open_offered
from torchkiln.matrix import facts
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.add_release.compat_block import block, toolkit_line
from torchkiln.matrix.add_release.edit import with_pair, with_version
from torchkiln.matrix.add_release.propose import ReleaseMetadata, look_up
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import load
from torchkiln.util.files import write_atomic
from torchkiln.util.strict_json import read_file, text_of

_FACTS = "torchkiln/data/compat.yaml"
_LIMIT = 1 << 20  # bytes


@click.group("matrix", cls=Group)
def matrix() -> None:
    """Add a torch release to matrix.yaml and to the facts."""


@matrix.command("add")
@click.argument("package", type=click.Choice(["torch"]), metavar="torch")
@click.argument("version", metavar="VERSION")
@click.option("--write", is_flag=True, help="write the line into matrix.yaml")
@mirror_option
@matrix_option
def add(package: str, version: str, write: bool, matrix_file: Path) -> None:
    """Print the line for matrix.yaml and the block of facts that a new torch release needs.

    Both come from the index's metadata. Only matrix.yaml is written, and only with --write.
    """
    known = facts.load()
    grid = matrix_of.read(matrix_file, known)
    if version in grid.releases:
        click.echo(f"matrix: {matrix_file} has {package} {version} already", err=True)
        return
    release = look_up(version, open_offered(os.environ, open_cache()))
    beyond = (
        release.cuda not in grid.cuda
    )  # a single cell: other releases have no wheel for that CUDA version
    _print(release, known, beyond=beyond)
    if write:
        _write(matrix_file, release, known, beyond=beyond)
    else:
        click.echo(f"matrix: nothing was written; --write writes the line into {matrix_file}", err=True)


def _print(release: ReleaseMetadata, known: Facts, *, beyond: bool) -> None:
    if beyond:
        click.echo(
            f'# matrix.yaml, under beyond:\n  - {{torch: "{release.version}", cuda: "{release.cuda}"}}'
        )
    else:
        click.echo(f'# matrix.yaml, under torch:\n  - "{release.version}"')
    if release.version not in known.releases:
        click.echo(f"# {_FACTS}, under releases:\n{block(release)}", nl=False)
    if toolkit := toolkit_line(release, known):
        click.echo(f"# {_FACTS}, under cuda:\n{toolkit}", nl=False)


def _write(matrix_file: Path, release: ReleaseMetadata, known: Facts, *, beyond: bool) -> None:
    """Write the line into the file.

    :raises ConfigError: the facts lack the release or its CUDA version, or the line cannot be inserted.
    """
    missing = [f"torch {release.version}"] if release.version not in known.releases else []
    missing += [f"CUDA {release.cuda}"] if release.cuda not in known.cuda else []
    if missing:
        raise ConfigError(
            f"{_FACTS} has no facts for {' and '.join(missing)}; nothing was written to {matrix_file}",
            hint="insert the lines above, fill in each TODO, and run this again",
        )
    text = text_of(read_file(matrix_file, _LIMIT))
    if beyond:
        text = with_pair(text, release.version, release.cuda, name=str(matrix_file))
    else:
        text = with_version(text, "torch", release.version, name=str(matrix_file))
    if (release.version, release.cuda) not in load(text, known, name=str(matrix_file)).pairs:
        raise ConfigError(
            f"{matrix_file}: the line for {release.version} cannot be inserted",
            hint="insert it with an editor",
        )
    write_atomic(matrix_file, text.encode(), mode=matrix_file.stat().st_mode & 0o777)
    command = as_typed(f"torchkiln lock --torch {release.version}")
    click.echo(f"matrix: wrote {matrix_file}; next: {command}", err=True)
