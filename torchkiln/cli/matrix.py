"""`torchkiln matrix add torch X`: adds a release to matrix and facts, from its wheel on the index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

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
from torchkiln.matrix.add_release.edit import with_block, with_pair, with_version
from torchkiln.matrix.add_release.propose import ReleaseMetadata, look_up
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import load
from torchkiln.util.files import write_atomic
from torchkiln.util.places import INSTALLED, PACKAGE
from torchkiln.util.strict_json import read_file, text_of
from torchkiln.util.versions import newest

_FACTS = "torchkiln/data/compat.yaml"
_FACTS_FILE = PACKAGE / "data/compat.yaml"
_LIMIT = 1 << 20  # bytes
NEWEST = "newest"


@click.group("matrix", cls=Group)
def matrix() -> None:
    """Add a torch release to matrix.yaml and to the facts."""


@matrix.command("add")
@click.argument("package", type=click.Choice(["torch"]), metavar="torch")
@click.argument("version", metavar="VERSION")
@click.option("--write", is_flag=True, help=f"write the lines into matrix.yaml and {_FACTS}")
@click.option("--build", is_flag=True, help="also lock, build and test the runtime image; implies --write")
@click.option("--smoke", is_flag=True, help="fail if the image cannot be tested here; implies --build")
@mirror_option
@matrix_option
def add(package: str, version: str, write: bool, build: bool, smoke: bool, matrix_file: Path) -> None:
    """Print the line for matrix.yaml and the block of facts that a new torch release needs.

    VERSION can be `newest`: the newest release on the index, if it is newer than those of the matrix.

    The values are read from the wheel on the index; only a few megabytes of it are downloaded. Nothing is
    written without --write.
    """
    known = facts.load()
    grid = matrix_of.read(matrix_file, known)
    offered = None
    if version == NEWEST:
        offered = open_offered(os.environ, open_cache())
        version = newest([*offered.versions(package), *grid.releases])
        if version in grid.releases:
            click.echo(f"matrix: {matrix_file} has {package} {version}, the newest release", err=True)
            return
    if version in grid.releases:
        click.echo(f"matrix: {matrix_file} has {package} {version} already", err=True)
        if build or smoke:
            cuda = next(cuda for torch, cuda in grid.pairs if torch == version)
            _make(version, cuda, matrix_file, smoke=smoke)
        return
    release = look_up(version, offered or open_offered(os.environ, open_cache()))
    # A release for a CUDA version that the matrix lacks is one cell: other releases have no wheel for it.
    beyond = release.cuda not in grid.cuda
    _print(release, known, beyond=beyond)
    if not (write or build or smoke):
        click.echo(f"matrix: nothing was written; --write writes the lines into {matrix_file}", err=True)
        return
    _write(matrix_file, release, known, beyond=beyond)
    if build or smoke:
        _make(version, release.cuda, matrix_file, smoke=smoke)


def _make(version: str, cuda: str, matrix_file: Path, *, smoke: bool) -> NoReturn:
    """Lock the cell, then replace this process by `build`; both commands read the new facts."""
    cell = ("--torch", version, "--cuda", cuda, "--matrix", str(matrix_file))
    lock, build = ("lock", *cell), ("build", *cell, *(("--smoke",) if smoke else ()))
    python = (sys.executable, "-m", "torchkiln")
    click.echo(f"matrix: {as_typed('torchkiln ' + ' '.join(lock))}", err=True)
    if code := subprocess.run([*python, *lock], check=False).returncode:
        sys.exit(code)
    click.echo(f"matrix: {as_typed('torchkiln ' + ' '.join(build))}", err=True)
    sys.stdout.flush()
    os.execv(sys.executable, [*python, *build])


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
    """Write the line into the matrix, and the block into the facts if they lack the release.

    :raises ConfigError: a fact has no value yet, no place for the line is found, or the facts file is
        part of an installed package.
    """
    lacking = block(release) if release.version not in known.releases else ""
    missing = [f"CUDA {release.cuda}"] if release.cuda not in known.cuda else []
    missing += [f"torch {release.version}"] if lacking and not release.is_complete else []
    if missing:
        raise ConfigError(
            f"{_FACTS} has no facts for {' and '.join(missing)}; nothing was written",
            hint=f"insert the lines above into {_FACTS}, replace each TODO by its value, and run this again",
        )
    if lacking and INSTALLED:
        raise ConfigError(
            f"{_FACTS} is part of the installed package, and has no facts for torch {release.version}",
            hint="upgrade torchkiln, or add the release in a checkout of it",
        )
    text, name = text_of(read_file(matrix_file, _LIMIT)), str(matrix_file)
    if beyond:
        text = with_pair(text, release.version, release.cuda, name=name)
    else:
        text = with_version(text, "torch", release.version, name=name)
    known_then, compat = known, ""
    if lacking:
        compat = text_of(read_file(_FACTS_FILE, _LIMIT))
        compat = with_block(compat, "releases", release.version, lacking, name=_FACTS)
        known_then = facts.parse(compat.encode())
    if (release.version, release.cuda) not in load(text, known_then, name=name).pairs:
        raise ConfigError(
            f"{matrix_file}: the line for {release.version} cannot be inserted",
            hint="insert it with an editor",
        )
    if compat:
        write_atomic(_FACTS_FILE, compat.encode(), mode=_FACTS_FILE.stat().st_mode & 0o777)
        click.echo(f"matrix: wrote {_FACTS}", err=True)
    write_atomic(matrix_file, text.encode(), mode=matrix_file.stat().st_mode & 0o777)
    command = as_typed(f"torchkiln lock --torch {release.version}")
    click.echo(f"matrix: wrote {matrix_file}; next: {command}", err=True)
