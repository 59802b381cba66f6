"""Counts the device code of a library: for which architectures, and how many bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchkiln.device_code.fatbin import Kind, containers

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeSum:
    """All entries of a library for one architecture."""

    kind: Kind
    architecture: int
    name: str  # "sm_90a", "compute_90"
    entries: int
    size: int  # bytes of the payloads, as stored


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The device code of a library."""

    containers: int
    sums: tuple[CodeSum, ...]  # by kind, then architecture


def inventory(library: ReadableBuffer) -> Inventory:
    """The device code of *library*; empty if it has none.

    :raises UnknownDeviceCode: the device code has an unknown format.
    """
    count = 0
    sizes: dict[tuple[Kind, int, str], list[int]] = defaultdict(list)
    with memoryview(library) as view, view.cast("B") as data:
        for container in containers(data):
            count += 1
            for entry in container.entries:
                sizes[entry.kind, entry.architecture, entry.name].append(entry.payload.size)
    sums = tuple(
        CodeSum(kind=kind, architecture=architecture, name=name, entries=len(found), size=sum(found))
        for (kind, architecture, name), found in sorted(sizes.items())
    )
    return Inventory(containers=count, sums=sums)
