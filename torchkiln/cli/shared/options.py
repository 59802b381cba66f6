"""Options and folders that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from torchkiln.errors import ConfigError
from torchkiln.oci.owned import demand_own_layout
from torchkiln.util.places import ROOT

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
F = TypeVar("F", bound=Callable[..., Any])


def here_or_checkout(name: str) -> Path:
    """*name* in the current folder if it is there, else the one of our checkout."""
    return Path(name) if Path(name).exists() else ROOT / name


def matrix_option(command: F) -> F:
    """The option --matrix."""
    return click.option(
        "--matrix",
        "matrix_file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: here_or_checkout("matrix.yaml"),
        show_default="matrix.yaml",
        help="the version matrix",
    )(command)


def layout_option(
    text: str = "the OCI layout that holds the image", default: Path | None = Path("dist")
) -> Callable[[F], F]:
    """The option --output: a layout, as `build` writes them."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        default=default,
        show_default=True,
        callback=_own,
        help=text,
    )


def _own(_: click.Context, __: click.Parameter, layout: Path | None) -> Path | None:
    """:raises ConfigError: other users can change what is in it."""
    if layout is not None:
        demand_own_layout(layout)
    return layout


def images_folder(command: F) -> F:
    """The option --images: where locks and other generated files lie."""
    return click.option(
        "--images",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: here_or_checkout("images"),
        show_default="images",
        help="the folder of generated files",
    )(command)


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """`("2.6,2.7", "2.8")` as `("2.6", "2.7", "2.8")`."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def parse_size(text: str, option: str = "--shm-size") -> int:
    """`64m`, `1g`, the value of *option*, as bytes.

    :raises ConfigError: it is no size.
    """
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ConfigError(f"{option} {text}: not a size", hint="write 64m, or 1g")
    return int(match[1]) * _UNITS[match[2]]
