"""Writes the text of a devcontainer.json, with which VS Code and others open a folder in a container. Pure.

The properties follow schemas/devContainer.base.schema.json of the repository devcontainers/spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.recipe import PREFIX
from torchkiln.util.files import pretty_json

# Where tools look for the file; the first is the one that is written.
PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
SHM_SIZE = "8g"
_USER = "root"  # the user of the images, who may install packages into /opt/venv
_IMAGE = re.compile(r"[A-Za-z0-9][\w.:/-]{0,254}(@sha256:[0-9a-f]{64})?", re.ASCII)
_PORTS = {8888: "JupyterLab", 6006: "TensorBoard"}
_EXTENSIONS = ("ms-python.python", "ms-toolsai.jupyter")


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
    """The text of the file."""
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
