"""Reads the mirrors and the keyring of a base from the environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from torchkiln.base.recipe import BaseRecipe
from torchkiln.errors import ConfigError
from torchkiln.matrix.mirrors import preset_of
from torchkiln.model.operating_system import operating_system
from torchkiln.model.untrusted import declared
from torchkiln.vault import VARIABLE

SNAPSHOT = "TORCHKILN_SNAPSHOT"  # the variable with the address of the snapshot service
_ADDRESS = re.compile(r"(https?|file|copy)://[^\s'\"|&\\]+")
_SNAPSHOT = re.compile(r"/(\d{8}T\d{6}Z)/?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveSources:
    """Mirrors and keyring; an empty mirror means the archive's official address."""

    mirror: str
    security_mirror: str
    keyring: PurePosixPath
    untrusted: bool  # whether a mirror is declared as untrusted


def variables(recipe: BaseRecipe) -> tuple[str, str, str]:
    """The names of the variables for mirror, security mirror and keyring of the distribution."""
    return operating_system(recipe.os).variables


def values(recipe: BaseRecipe, environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Mirror, security mirror and keyring that *environ* or its preset sets; empty if neither does.

    :raises ConfigError: there is no such preset.
    """
    preset = preset_of(environ)
    mirror, security, keyring = (environ.get(name) or preset.get(name, "") for name in variables(recipe))
    return mirror, security, keyring


def key_of(recipe: BaseRecipe, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that decide whether locked packages can be had."""
    return (*values(recipe, environ), environ.get(VARIABLE, ""), environ.get(SNAPSHOT, ""))


def sources_of(recipe: BaseRecipe, environ: Mapping[str, str]) -> ArchiveSources:
    """The sources in *environ*, by default those of *recipe*.

    :raises ConfigError: a mirror is not a URL, or the keyring is not an absolute path.
    """
    mirror, security, keyring = variables(recipe)
    found = dict(zip((mirror, security, keyring), values(recipe, environ), strict=True))
    mirrors = {name: declared(found[name]) for name in (mirror, security)}
    for name, (address, _) in mirrors.items():
        if address and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"{name} is not a valid URL of an archive: {found[name]!r}")
    path = PurePosixPath(found[keyring] or recipe.keyring)
    if not path.is_absolute() or not re.fullmatch(r"[\w./+~-]+", str(path)):
        raise ConfigError(f"{keyring} is not an absolute path: {str(path)!r}")
    return ArchiveSources(
        mirror=mirrors[mirror][0],
        security_mirror=mirrors[security][0],
        keyring=path,
        untrusted=any(untrusted for _, untrusted in mirrors.values()),
    )


def copying(sources: ArchiveSources) -> ArchiveSources:
    """*sources* with copy: in place of file:, so that apt copies files of this machine, too."""
    mirror, security = (re.sub("^file:", "copy:", at) for at in (sources.mirror, sources.security_mirror))
    return replace(sources, mirror=mirror, security_mirror=security)


def snapshot_of(sources: ArchiveSources) -> str:
    """The time of the snapshot of the archive, "20260101T000000Z"; empty if the mirror is not a snapshot."""
    found = _SNAPSHOT.search(sources.mirror)
    return found[1] if found else ""


def edits(sources: ArchiveSources) -> tuple[str, ...]:
    """A sed script that sets the mirrors in the sources.list of mmdebstrap."""
    pairs = ((sources.mirror, "/-security /!"), (sources.security_mirror, "/-security /"))
    return tuple(
        # The Release file of a snapshot is expired.
        f"{which}s|^deb [^ ]*|deb {'[check-valid-until=no] ' if _SNAPSHOT.search(address) else ''}{address}|"
        for address, which in pairs
        if address
    )
