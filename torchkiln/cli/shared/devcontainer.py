"""Writes the devcontainer.json of the current folder, for `init --devcontainer`."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.cli.shared.options import nearest_matrix
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.errors import ConfigError
from torchkiln.model.project import APP
from torchkiln.project.devcontainer import PLACES, DevContainer, demand_image_name, devcontainer_json
from torchkiln.project.file import load_project
from torchkiln.util.files import write_atomic


def write_devcontainer(image: str | None, torch: str | None, cuda: str | None) -> tuple[Path, str]:
    """Write the file; returns its path, and the command that loads the image into an engine, if any.

    :param image: the image's name in an engine or a registry. None: the image of the folder's project; if
        there is none, the image of the cell with *torch* and *cuda*.
    :raises ConfigError: the folder has such a file, or the options select several cells.
    :raises NothingSelected: the folder has no project's lock, and no cell is named.
    """
    if present := next((place for place in PLACES if os.path.lexists(place)), None):
        raise ConfigError(f"{present}: file exists", hint="edit it, or delete it first")
    container, command = _container(image, torch, cuda)
    path = Path(PLACES[0])
    write_atomic(path, devcontainer_json(container))
    return path, command


def _container(image: str | None, torch: str | None, cuda: str | None) -> tuple[DevContainer, str]:
    here = Path()
    lock = load_project(here) if not (torch or cuda) else None
    folder = f"/{APP}" if lock else "/workspace"
    name = lock.name if lock else here.resolve().name
    if image is not None:
        return DevContainer(name=name, image=demand_image_name(image), folder=folder), ""
    torches, cudas = ((value,) if value else () for value in (torch, cuda))
    chosen = CellOptions(matrix_file=nearest_matrix(), torch=torches, cuda=cudas)
    repository = chosen.grid()[0].repository
    if lock:
        command = (
            f"torchkiln build --project {here}`, then `torchkiln run {lock.name} --runtime docker -- true"
        )
        return DevContainer(name=name, image=f"{repository}:{lock.name}", folder=folder), command
    tag = chosen.tag("init --devcontainer")
    return (
        DevContainer(name=name, image=f"{repository}:{tag}", folder=folder),
        f"torchkiln build {tag} --load",
    )
