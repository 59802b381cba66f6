"""Defines the options that several commands share, and parses their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from torchkiln.errors import ConfigError
from torchkiln.oci.owned import demand_own_layout
from torchkiln.util.places import ROOT

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
Decorator = Callable[[Any], Any]
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
FOLDER = click.Path(path_type=Path, file_okay=False)


def options(*decorators: Decorator) -> Decorator:
    """One decorator that adds several options, which `--help` shows in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def here_or_checkout(name: str) -> Path:
    """*name* in the current folder if it exists, else torchkiln's own."""
    return Path(name) if Path(name).exists() else ROOT / name


def layout_option(
    text: str = "the OCI layout that holds the image", default: Path | None = Path("dist")
) -> Decorator:
    """The option --output: an OCI layout that `build` writes."""
    return click.option(
        "--output", type=FOLDER, default=default, show_default=True, callback=_demand_own, help=text
    )


def _demand_own(_: click.Context, __: click.Parameter, layout: Path | None) -> Path | None:
    """:raises ConfigError: other users can change the layout."""
    if layout is not None:
        demand_own_layout(layout)
    return layout


matrix_option = click.option(
    "--matrix",
    "matrix_file",
    type=FILE,
    default=lambda: here_or_checkout("matrix.yaml"),
    show_default="matrix.yaml",
    help="the matrix of versions",
)
images_folder = click.option(
    "--images",
    type=FOLDER,
    default=lambda: here_or_checkout("images"),
    show_default="images",
    help="the folder of locks and Dockerfiles",
)
suite_option = click.option(
    "--suite", "suite_folder", type=FOLDER, help="use the smoke tests of this folder instead of torchkiln's"
)
plain_http_option = click.option("--plain-http", is_flag=True, help="use http for a remote registry")
gpus_option = click.option(
    "--gpus",
    metavar="all|none|N|device=ID,ID",
    help="GPUs to use, by default all if there are any; N and device= need an engine",
)
shm_size_option = click.option("--shm-size", default="1g", show_default=True, help="the size of /dev/shm")
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="print no progress and no summary")


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """`("2.6,2.7", "2.8")` as `("2.6", "2.7", "2.8")`."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def parse_size(text: str, option: str = "--shm-size") -> int:
    """`64m`, `1g`, the value of *option*, as bytes.

    :raises ConfigError: it is not a valid size.
    """
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ConfigError(f"{option} {text}: not a valid size", hint="write for example 64m or 1g")
    return int(match[1]) * _UNITS[match[2]]
