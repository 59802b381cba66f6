"""Checks that the name of a project is not the name of another image."""

from __future__ import annotations

from torchkiln.errors import ConfigError
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_for, misfit


def demand_own_name(name: str, tag: str, matrix: Matrix) -> None:
    """Check that the *name* of a project on the image *tag* is not the name of another image.

    :raises ConfigError: *name* is the name of another image.
    """
    own = name == tag or name in aliases_for(tag, matrix)
    if why := f"it is a tag of {tag}" if own else misfit(name, tag, matrix):
        raise ConfigError(
            f"{name}: not a name for the project's image: {why}",
            hint="set another name in pyproject.toml, under [project]",
        )
