"""Chooses the cell of a new project, and generates the text of its matrix.yaml."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, load
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.sentences import reason
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.util.versions import nearest, numbers

SCHEMA = "matrix.schema.json"  # the schema file beside matrix.yaml, for editors
_PACKAGES = "numpy, pillow, tqdm, jupyterlab, ipywidgets, ninja, soundfile, tensorboard, pip, uv"


def first_cell(facts: Facts, torch: str | None, cuda: str | None) -> Resolution:
    """The newest cell that can be locked from the default index alone.

    :param torch: the release, or its beginning: "2.7".
    :param cuda: as *torch*; None: the CUDA version that the release's wheel is built with.
    :raises ConfigError: there is no such version.
    :raises Unresolvable: the newest cell of these versions is unavailable.
    """
    matrix, python = _everything(facts), SYSTEMS[DEFAULT_OS].python
    cudas, found = _matching("cuda", cuda, matrix.cudas), []
    for name in _matching("torch", torch, matrix.releases):
        release = facts.releases[name]
        for version in cudas if cuda else [release.variant(release.default.variant).cuda]:
            cell = Cell(torch=name, cuda=version, flavor="runtime", os=DEFAULT_OS, python=python)
            found.append(resolve(cell, matrix, facts))
            if found[-1].lockable:
                return found[-1]
    require_buildable(found[0])
    raise ConfigError(
        f"torch {found[0].cell.torch} with CUDA {found[0].cell.cuda} cannot be locked from the default index"
        f" alone: {reason(found[0])}",
        hint="choose another --torch or --cuda; or add this one to matrix.yaml later",
    )


def matrix_text(resolution: Resolution) -> str:
    """The text of a matrix.yaml with the cell of *resolution* alone, and comments."""
    cell = resolution.cell
    return f"""\
# yaml-language-server: $schema={SCHEMA}
# The images of this project: each torch with each CUDA version. After a change run `torchkiln lock --all`.
# `torchkiln list --all` shows the images, `torchkiln explain --torch X --cuda Y` the limits of one.
torch: ["{cell.torch}"]  # in quotes: YAML reads 2.10 as a number
cuda: ["{cell.cuda}"]  # needs driver {resolution.min_driver} or newer
flavors: [runtime]  # devel: with NVIDIA's compiler and headers
os:
  {cell.os}: {{python: "{cell.python}"}}
# Installed in every image, besides torch, torchvision and torchaudio; with bounds if needed: "numpy<2".
packages: [{_PACKAGES}]
# An image is called REPOSITORY:TAG.
repository: pytorch-cuda
"""


def _matching(option: str, wanted: str | None, known: Sequence[str]) -> list[str]:
    """The *known* versions that are *wanted* or begin with it, newest first.

    :raises ConfigError: there is none.
    """
    ordered = sorted(known, key=numbers, reverse=True)
    found = [each for each in ordered if wanted is None or f"{each}.".startswith(f"{wanted}.")]
    if not found:
        near = ", ".join(nearest(str(wanted)[:40], ordered) or ordered)
        raise ConfigError(f"--{option} {wanted}: unknown version", hint=f"nearest: {near}")
    return found


def _everything(facts: Facts) -> Matrix:
    """A matrix with every release and CUDA version of the facts."""
    system = SYSTEMS[DEFAULT_OS]
    draft = {
        "torch": list(facts.releases),
        "cuda": list(facts.cuda),
        "flavors": ["runtime"],
        "os": {system.name: {"python": system.python}},
        "packages": [],
        "repository": "all",
    }
    return load(json.dumps(draft), facts)
