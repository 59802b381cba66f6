"""BaseRecipe, the user's environment → where a base's packages come from, and by whose keys. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchkiln.base.recipe import BaseRecipe
from torchkiln.errors import ConfigError
from torchkiln.model.operating_system import operating_system
from torchkiln.model.untrusted import declared

_ADDRESS = re.compile(r"(https?|file|copy)://[^\s'\"|&\\]+")
_SNAPSHOT = re.compile(r"/\d{8}T\d{6}Z/?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Mirrors are empty where the archive's own addresses serve."""

    mirror: str
    security_mirror: str
    keyring: PurePosixPath
    untrusted: bool  # whether one of the mirrors is


def variables(recipe: BaseRecipe) -> tuple[str, str, str]:
    """The names of those that say so: mirror, security mirror, keyring. Each distribution has its own."""
    return operating_system(recipe.os).variables


def sources_of(recipe: BaseRecipe, environ: Mapping[str, str]) -> Sources:
    """What *environ* says, and else *recipe*.

    :raises ConfigError: a mirror is not an address, or the keyring is no path from the root.
    """
    mirror, security, keyring = variables(recipe)
    told = {name: declared(environ.get(name, "")) for name in (mirror, security)}
    for name, (address, _) in told.items():
        if address and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"{name} is not an address of an archive: {environ[name]!r}")
    path = PurePosixPath(environ.get(keyring) or recipe.keyring)
    if not path.is_absolute() or not re.fullmatch(r"[\w./+~-]+", str(path)):
        raise ConfigError(f"{keyring} is not a path from the root: {str(path)!r}")
    return Sources(
        mirror=told[mirror][0],
        security_mirror=told[security][0],
        keyring=path,
        untrusted=any(untrusted for _, untrusted in told.values()),
    )


def edits(sources: Sources) -> tuple[str, ...]:
    """Lines for sed that put the mirrors into a sources.list as mmdebstrap writes it by default."""
    pairs = ((sources.mirror, "/-security /!"), (sources.security_mirror, "/-security /"))
    return tuple(
        # A snapshot's Release file is past its date by nature.
        f"{which}s|^deb [^ ]*|deb {'[check-valid-until=no] ' if _SNAPSHOT.search(address) else ''}{address}|"
        for address, which in pairs
        if address
    )
