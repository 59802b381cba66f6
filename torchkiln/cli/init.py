"""`torchkiln init`: writes a matrix.yaml with one cell into the current folder.

The properties of devcontainer.json follow schemas/devContainer.base.schema.json of the repository
devcontainers/spec.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from torchkiln.cli.shared.completing import KNOWN_CUDA, KNOWN_TORCH
from torchkiln.cli.shared.options import nearest_matrix
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.terminal import as_typed, echo
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.matrix import facts
from torchkiln.matrix.explain import reason
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, load
from torchkiln.matrix.pick import DriverVersion, Gpu, parse_driver, parse_gpus, pick
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.select import plain, split
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.model.project import APP
from torchkiln.model.recipe import PREFIX
from torchkiln.projects.file import load_project
from torchkiln.util.files import pretty_json, write_atomic
from torchkiln.util.schema import shipped_text
from torchkiln.util.versions import nearest, numbers

_MATRIX = Path("matrix.yaml")
# Where tools look for the file; the first is the one that is written.
PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
SHM_SIZE = "8g"
_USER = "root"  # the user of the images, who may install packages into /opt/venv
_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/-]{0,254}(@sha256:[0-9a-f]{64})?", re.ASCII)
_PORTS = {8888: "JupyterLab", 6006: "TensorBoard"}
_EXTENSIONS = ("ms-python.python", "ms-toolsai.jupyter")
SCHEMA = "matrix.schema.json"  # the schema file beside matrix.yaml, for editors
_PACKAGES = "numpy, pillow, tqdm, jupyterlab, ipywidgets, ninja, soundfile, tensorboard, pip, uv"


@click.command("init")
@click.option("--torch", metavar="X", shell_complete=KNOWN_TORCH, help="torch release  [default: the newest]")
@click.option(
    "--cuda", metavar="X", shell_complete=KNOWN_CUDA, help="CUDA version  [default: that of torch's wheel]"
)
@click.option(
    "--driver", metavar="V", help="the newest that runs with this driver: 535.104.05, or its branch, 535"
)
@click.option(
    "--gpu", multiple=True, metavar="NAME", help="with --driver: and on this GPU (A100) or capability (8.0)"
)
@click.option(
    "--devcontainer",
    is_flag=True,
    help="write .devcontainer/devcontainer.json instead, to open this folder in a container",
)
@click.option(
    "--image",
    metavar="NAME",
    help="with --devcontainer: the image in an engine or a registry  [default: that of the project in this"
    " folder, else of the cell]",
)
def init(
    torch: str | None,
    cuda: str | None,
    driver: str | None,
    gpu: tuple[str, ...],
    devcontainer: bool,
    image: str | None,
) -> None:
    """Start a project in the current folder: write matrix.yaml with one image, and its schema for editors.

    With --devcontainer write a dev container for VS Code and other tools. Existing files are never changed.
    """
    if image is not None and not devcontainer:
        raise click.UsageError("--image requires --devcontainer")
    if image is not None and (torch or cuda):
        raise click.UsageError("--image cannot be used with --torch or --cuda")
    if (gpu and not driver) or (driver and devcontainer):
        raise click.UsageError("--gpu requires --driver, and --devcontainer cannot be used with them")
    if devcontainer:
        path, command = _write_devcontainer(image, torch, cuda)
        echo(path)
        first = f"`{command}`; then " if command else ""
        echo(
            as_typed(f"next: {first}open the folder in VS Code, or `devcontainer up --workspace-folder .`"),
            err=True,
        )
        return
    if os.path.lexists(_MATRIX):
        raise ConfigError(f"{_MATRIX}: file exists", hint="edit it, or run this in another folder")
    known = facts.load()
    host = (parse_driver(driver), parse_gpus(split(gpu), known)) if driver else None
    text = matrix_text(first_cell(known, torch, cuda, host))
    load(text, known)
    if not os.path.lexists(SCHEMA):
        write_atomic(Path(SCHEMA), shipped_text("matrix"))
    write_atomic(_MATRIX, text.encode())
    echo(_MATRIX)
    echo(as_typed("next: `torchkiln lock`; then `torchkiln build`"), err=True)


def _write_devcontainer(image: str | None, torch: str | None, cuda: str | None) -> tuple[Path, str]:
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
        command = f"torchkiln project build {here}`, then `torchkiln run {lock.name} --runtime docker -- true"
        return DevContainer(name=name, image=f"{repository}:{lock.name}", folder=folder), command
    tag = chosen.tag("init --devcontainer")
    container = DevContainer(name=name, image=f"{repository}:{tag}", folder=folder)
    return container, f"torchkiln build {tag} --load"


@dataclass(frozen=True, kw_only=True, slots=True)
class DevContainer:
    """The container in which a tool opens a folder."""

    name: str
    image: str  # the name by which Docker or Podman finds it
    folder: str  # where the folder is mounted, "/app"


def demand_image_name(text: str) -> str:
    """Return *text* if it is a valid name of an image for Docker or Podman.

    :raises ConfigError: *text* is not such a name.
    """
    if not _IMAGE.fullmatch(text):
        raise ConfigError(
            f"--image {text[:100]}: invalid reference format",
            hint="write [REGISTRY/]REPOSITORY:TAG, as in registry.example:5000/team/my-project:main",
        )
    return text


def devcontainer_json(container: DevContainer) -> bytes:
    return pretty_json(_document(container))


def _document(container: DevContainer) -> Mapping[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "workspaceMount": f"source=${{localWorkspaceFolder}},target={container.folder},type=bind",
        "workspaceFolder": container.folder,
        "remoteUser": _USER,
        "hostRequirements": {"gpu": "optional"},  # tools then add --gpus all if the engine supports GPUs
        "runArgs": [f"--shm-size={SHM_SIZE}"],
        "mounts": [
            # Downloads of pip, uv, Hugging Face and torch.hub outlive the container.
            {"type": "volume", "source": "torchkiln-cache-${devcontainerId}", "target": "/root/.cache"}
        ],
        "forwardPorts": list(_PORTS),
        "portsAttributes": {
            str(port): {"label": label, "onAutoForward": "notify"} for port, label in _PORTS.items()
        },
        "otherPortsAttributes": {"onAutoForward": "ignore"},  # torchrun and NCCL listen on many ports
        "postCreateCommand": "",
        "customizations": {
            "vscode": {
                "extensions": list(_EXTENSIONS),
                "settings": {"python.defaultInterpreterPath": f"{PREFIX}/bin/python"},
            }
        },
    }


def first_cell(
    facts: Facts,
    torch: str | None,
    cuda: str | None,
    host: tuple[DriverVersion, Sequence[Gpu]] | None = None,
) -> Resolution:
    """The newest cell that can be locked from the default index alone, and that runs on *host*.

    :param torch: the release, or its beginning: "2.7".
    :param cuda: as *torch*; None: the CUDA version that the release's wheel is built with.
    :raises ConfigError: there is no such version.
    :raises Unresolvable: the newest cell of these versions is unavailable.
    :raises NothingSelected: no cell runs on *host*.
    """
    matrix, python = _everything(facts), SYSTEMS[DEFAULT_OS].python
    cudas, found = _matching("cuda", cuda, matrix.cudas), []
    for name in _matching("torch", torch, matrix.releases):
        release = facts.releases[name]
        for version in cudas if cuda else [release.variant(release.default.variant).cuda]:
            cell = Cell(torch=name, cuda=version, flavor="runtime", os=DEFAULT_OS, python=python)
            found.append(resolve(cell, matrix, facts))
            if found[-1].lockable and (host is None or pick([found[-1]], *host).runs):
                return found[-1]
    require_buildable(found[0])
    if host and any(each.lockable for each in found):
        oldest = pick([next(each for each in reversed(found) if each.lockable)], *host)
        raise NothingSelected(
            "no image that the default index alone can give runs on that host",
            hint="; ".join(oldest.host or oldest.fails[0].obstacles),
        )
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


def _matching(option: Literal["torch", "cuda"], wanted: str | None, known: Sequence[str]) -> list[str]:
    """The *known* versions that are *wanted* or begin with it, newest first."""
    ordered = sorted(known, key=numbers, reverse=True)
    start = f"{plain(option, wanted).partition('+')[0]}." if wanted is not None else ""
    found = [each for each in ordered if f"{each}.".startswith(start)]
    if not found:
        near = ", ".join(nearest(str(wanted)[:40], ordered) or ordered)
        raise ConfigError(f"--{option} {wanted}: unknown version", hint=f"nearest: {near}")
    return found


def _everything(facts: Facts) -> Matrix:
    """A matrix with every release and CUDA version of the facts."""
    system = SYSTEMS[DEFAULT_OS]
    systems = {system.name: {"python": system.python}}
    fixed = {"flavors": ["runtime"], "packages": [], "repository": "all"}
    draft = {"torch": list(facts.releases), "cuda": list(facts.cuda), "os": systems, **fixed}
    return load(json.dumps(draft), facts)
