"""Completes values of options in a shell: versions and tags.

A shell shows no error, so a matrix or folder that cannot be read gives no values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.errors import KilnError

if TYPE_CHECKING:
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.matrix import Matrix

Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _completion(values: Callable[[click.Context], Iterable[str]]) -> Completion:
    """Complete the last of comma-separated values."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        try:
            return [f"{before}{comma}{value}" for value in values(context) if value.startswith(last)]
        except (KilnError, OSError):
            return []

    return complete


def _facts() -> Facts:
    from torchkiln.matrix import facts

    return facts.load()


def _matrix(context: click.Context) -> Matrix:
    from torchkiln.cli.shared.options import nearest_matrix
    from torchkiln.matrix import facts, matrix

    path = context.params.get("matrix_file") or nearest_matrix()
    return matrix.read(path, facts.load(path))


def _tags(context: click.Context) -> Iterable[str]:
    from torchkiln.oci.layout import open_layout

    return sorted(open_layout(Path(context.params.get("output") or "dist")).refs())


KNOWN_TORCH = _completion(lambda _: _facts().releases)
KNOWN_CUDA = _completion(lambda _: _facts().cuda)
TORCH = _completion(lambda context: _matrix(context).releases)
CUDA = _completion(lambda context: _matrix(context).cudas)
FLAVOR = _completion(lambda context: _matrix(context).flavors)
OS = _completion(lambda context: [system.name for system in _matrix(context).os])
PYTHON = _completion(lambda context: sorted({system.python for system in _matrix(context).os}))
GPUS = _completion(lambda _: [kind.capability for kind in _facts().gpus if kind.names_on()])
TAGS = _completion(_tags)
