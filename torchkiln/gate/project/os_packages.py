"""The data class for what the gate reads from the layer of a project's OS packages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchkiln.gate.project.entries import LayerEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class OsLayer:
    """The layer of OS packages: the first above those of the parent image."""

    entries: tuple[LayerEntry, ...]
    packages: frozenset[tuple[str, str, str]]  # name, version, architecture, by project.json
    files: Mapping[str, bytes] = field(repr=False)  # path -> content: files whose content is compared
    sonames: Mapping[str, str | None]  # ELF file -> its SONAME, "" without one; None: it cannot be read
    owners: Mapping[str, str] = field(repr=False)  # path -> package, by dpkg's lists in the layer
    below: Mapping[str, bytes] = field(repr=False)  # the same files in the parent image

    @property
    def names(self) -> frozenset[str]:
        """The names of the packages."""
        return frozenset(name for name, _, _ in self.packages)
