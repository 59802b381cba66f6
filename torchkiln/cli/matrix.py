"""`torchkiln matrix add torch X`: adds a release to a matrix and its facts, from the wheel on the index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import yaml

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import mirror_option, own_matrix_option
from torchkiln.cli.shared.terminal import as_typed, echo
from torchkiln.errors import ConfigError
from torchkiln.index.package_index import open_offered
from torchkiln.matrix import facts
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.add_release import TODO, Proposal, look_up, with_item
from torchkiln.matrix.facts import EXTENSION, Facts
from torchkiln.matrix.matrix import load
from torchkiln.util import located_yaml
from torchkiln.util.files import write_atomic
from torchkiln.util.strict_json import read_file, text_of
from torchkiln.util.versions import newest

_LIMIT = 1 << 20  # bytes
NEWEST = "newest"


@click.group("matrix", cls=Group)
def matrix() -> None:
    """Add a torch release to matrix.yaml, and its facts to facts.yaml beside it."""


@matrix.command("add")
@click.argument("package", type=click.Choice(["torch"]), metavar="torch")
@click.argument("version", metavar="VERSION")
@click.option("--write", is_flag=True, help=f"write the lines into the matrix and {EXTENSION} beside it")
@click.option("--build", is_flag=True, help="also lock, build and test the runtime image; implies --write")
@click.option("--smoke", is_flag=True, help="fail if the image cannot be tested here; implies --build")
@mirror_option
@own_matrix_option
def add(package: str, version: str, write: bool, build: bool, smoke: bool, matrix_file: Path) -> None:
    """Print the line for matrix.yaml and the facts that a new torch release needs.

    Facts that torchkiln lacks are in the file facts.yaml beside the matrix.

    VERSION can be `newest`: the newest release on the index, if it is newer than those of the matrix.

    The values are read from the wheel on the index; only a few megabytes of it are downloaded. Nothing is
    written without --write.
    """
    known = facts.load(matrix_file)
    grid = matrix_of.read(matrix_file, known)
    offered = None
    if version == NEWEST:
        offered = open_offered(os.environ, open_cache())
        version = newest([*offered.versions(package), *grid.releases])
        if version in grid.releases:
            echo(f"matrix: {matrix_file} has {package} {version}, the newest release", err=True)
            return
    if version in grid.releases:
        echo(f"matrix: {matrix_file} has {package} {version} already", err=True)
        if build or smoke:
            cuda = next(cuda for torch, cuda in grid.pairs if torch == version)
            _make(version, cuda, matrix_file, smoke=smoke)
        return
    release = look_up(version, offered or open_offered(os.environ, open_cache()))
    # A release for a CUDA version that the matrix lacks is one cell: other releases have no wheel for it.
    beyond, new = release.cuda not in grid.cuda, _new_facts(release, known)
    pair = f'{{torch: "{version}", cuda: "{release.cuda}"}}'
    key, item = ("beyond", pair) if beyond else ("torch", f'"{version}"')
    echo(f"# matrix.yaml, under {key}:\n  - {item}")
    if new:
        notes = "".join(f"# {note}\n" for note in release.notes)
        echo(f"# {EXTENSION}, beside it:\n{notes}{_yaml(new)}", nl=False)
    if not (write or build or smoke):
        echo(f"matrix: nothing was written; --write writes the lines into {matrix_file}", err=True)
        return
    _write(matrix_file, release, new, key, item)
    if build or smoke:
        _make(version, release.cuda, matrix_file, smoke=smoke)


def _make(version: str, cuda: str, matrix_file: Path, *, smoke: bool) -> NoReturn:
    """Lock the cell, then replace this process by `build`; both commands read the new facts."""
    cell = ("--torch", version, "--cuda", cuda, "--matrix", str(matrix_file))
    lock, build = ("lock", *cell), ("build", *cell, *(("--smoke",) if smoke else ()))
    python = (sys.executable, "-m", "torchkiln")
    echo(f"matrix: {as_typed('torchkiln ' + ' '.join(lock))}", err=True)
    if code := subprocess.run([*python, *lock], check=False).returncode:
        sys.exit(code)
    echo(f"matrix: {as_typed('torchkiln ' + ' '.join(build))}", err=True)
    sys.stdout.flush()
    os.execv(sys.executable, [*python, *build])


def _new_facts(release: Proposal, known: Facts) -> dict[str, Any]:
    """The facts of *release* that are not *known*, in the form of facts.yaml."""
    found: dict[str, Any] = {}
    if release.cuda not in known.cuda:  # the driver tables of NVIDIA's CUDA release notes
        found["cuda"] = {release.cuda: {"ga": TODO, "full": TODO}}
    if release.version not in known.releases:
        found["releases"] = {release.version: release.entry}
    return found


def _yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)


def _write(matrix_file: Path, release: Proposal, new: dict[str, Any], key: str, item: str) -> None:
    """Write *item* into the list *key* of the matrix, and *new* into facts.yaml beside it."""
    beside, name = matrix_file.parent / EXTENSION, str(matrix_file)
    if TODO in _yaml(new):
        raise ConfigError(
            f"the index does not have all facts of torch {release.version}; nothing was written",
            hint=f"put the lines above into {beside}, replace each TODO by its value, and run this again",
        )
    text = with_item(text_of(read_file(matrix_file, _LIMIT)), key, item, name=name)
    before = read_file(beside, _LIMIT) if beside.exists() else b""
    merged: dict[str, Any] = located_yaml.parse(text_of(before), name=str(beside)).data if before else {}
    for key, entries in new.items():
        merged[key] = {**merged.get(key, {}), **entries}
    extended = _yaml(merged).encode() if new else before
    known = facts.extended(extended, name=str(beside)) if extended else facts.own()
    if (release.version, release.cuda) not in load(text, known, name=name).pairs:
        raise ConfigError(
            f"{matrix_file}: the line for {release.version} cannot be inserted",
            hint="insert it with an editor",
        )
    if new:
        write_atomic(beside, extended)
        echo(f"matrix: wrote {beside}", err=True)
    write_atomic(matrix_file, text.encode(), mode=matrix_file.stat().st_mode & 0o777)
    command = as_typed(f"torchkiln lock --torch {release.version}")
    echo(f"matrix: wrote {matrix_file}; next: {command}", err=True)
