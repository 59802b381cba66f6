"""The text that `help` prints."""

from __future__ import annotations

import textwrap

from workplace.image import Image
from workplace.settings import SWITCHES

WIDTH = 100  # columns
_NAMES = 29  # columns for the names of settings
_USE = """\
Start:
  docker run --gpus all -p 8888:8888 -p 2222:22 -v ./workspace:/workspace IMAGE
      JupyterLab, and SSH if there is a key (-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)")
  docker run --gpus all -it --rm IMAGE bash
      a shell, or any other command
  docker run --gpus all --rm IMAGE doctor [--json]
      check driver, GPUs, memory and services
  docker run --user $(id -u):$(id -g) -p 2222:2222 ... IMAGE
      files belong to you; SSH listens on 2222
  docker exec -it CONTAINER bash
      a shell in a running container"""
_MORE = """\
Ports    8888 JupyterLab, 22 SSH, 6006 TensorBoard
Work     in /workspace; --shm-size=8g for DataLoader workers and NCCL
Keys     SSH_PUBLIC_KEY, the file /etc/ssh/authorized_keys, or ~/.ssh/authorized_keys. Accounts: root and
         `user` (uid 1000); in a container that does not run as root, the user that it runs as.
Python   /opt/venv. pip and uv install there, or into your user site if you cannot write to it.
         /etc/torchkiln/constraints.txt keeps the versions of torch and its CUDA libraries.
apt      run apt-get update first: the image has no package lists.
exec     with a uid that has no name: docker exec CONTAINER /opt/torchkiln/entrypoint COMMAND"""


def text(image: Image) -> str:
    """Usage, the table of settings, and notes."""
    head = f"{image.tag}: PyTorch {image.torch} for NVIDIA drivers {image.min_driver} and newer"
    return "\n\n".join((head, _USE, "Settings (-e NAME=VALUE):\n" + _switches(), _MORE))


def _switches() -> str:
    rows = []
    for name, default, meaning in SWITCHES:
        text = f"{meaning} [{default}]" if default else meaning
        first, *rest = textwrap.wrap(text, WIDTH - _NAMES - 3)
        rows.append(f"  {name:<{_NAMES}} {first}")
        rows += [f"  {'':<{_NAMES}} {line}" for line in rest]
    return "\n".join(rows)
