"""Locks a cell with components: the lock of the plain cell, and the wheels that each component adds.

The wheels of the plain lock are constraints, so that the image is the plain one with more layers. Components
are locked in order of their names, each on top of the earlier ones. A wheel that two components need belongs
to the first, so `a` alone and `a` with `b` share the layers of `a`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.lock.freshness import require_fresh
from torchkiln.lock.lock import Index, epoch_of, inputs_digest
from torchkiln.lock.request import Versions
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import CellComponent, OwnFile, Resolution, Source
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell, LockedComponent, LockedWheel
from torchkiln.model.operating_system import operating_system


class WideIndex(Index, Protocol):
    """Package indexes, and files that are on no index."""

    def own(self, file: OwnFile) -> LockedWheel:
        """*file* with its size, verified by its hash.

        :raises Unresolvable: its location is not set, or it does not exist.
        """
        ...

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """The requirements of a wheel from `own`: PEP 508, with markers."""
        ...


def lock_beside(
    resolution: Resolution,
    index: WideIndex,
    plain: LockedCell,
    versions: Versions,
    *,
    below: Resolution,
    bound: tuple[str, ...] = (),
) -> LockedCell:
    """*plain* with the components of *resolution*.

    :param versions: for the components; the versions of *plain* do not change.
    :param below: the present resolution of the same cell without components.
    :raises Stale: *plain* was made from another matrix or other facts.
    :raises ConfigError: a component adds nothing to *plain*.
    :raises Unresolvable: a component conflicts with *plain*, or one of its files is not available.
    """
    require_fresh(plain, below, bound, role=", on which the components go,", run="first run")
    previous = versions.previous
    keep = versions.kept | {wheel.name: wheel.version for wheel in plain.wheels}
    wheels = {wheel.name: wheel for wheel in plain.wheels}
    requirements = list(resolution.requirements)
    found: list[LockedComponent] = []
    for component in resolution.components:
        own = [index.own(file) for file in component.wheels]
        program = index.own(component.program) if component.program else None
        requirements += [*component.requires, *(text for wheel in own for text in index.requires(wheel))]
        request = IndexRequest(
            requirements=tuple(dict.fromkeys(requirements)),
            constraints=(
                *(bound.requirement for bound in resolution.constraints),
                *(f"{wheel.name}=={wheel.version}" for wheel in wheels.values()),
            ),
            python=resolution.cell.python,
            glibc=operating_system(resolution.cell.os).glibc,
            as_of=versions.as_of,
            keep=tuple(sorted(keep.items())),
            bound=bound if resolution.build and resolution.build.source is Source.PYTORCH else (),
        )
        new = _new(component, plain, index, request, {*wheels, *(wheel.name for wheel in own)})
        names = tuple(sorted(wheel.name for wheel in (*new, *own)))
        found.append(LockedComponent(name=component.name, wheels=names, program=program))
        wheels |= {wheel.name: wheel for wheel in (*new, *own)}
    locked = replace(
        plain,
        resolution=resolution,
        wheels=tuple(sorted(wheels.values(), key=lambda wheel: wheel.name)),
        as_of=versions.as_of,
        epoch=epoch_of(versions.as_of),
        inputs=inputs_digest(resolution, bound),
        components=tuple(found),
    )
    if previous and (previous.wheels, previous.components) == (locked.wheels, locked.components):
        return replace(locked, layers=previous.layers or plain.layers)
    return locked


def _new(
    component: CellComponent, plain: LockedCell, index: Index, request: IndexRequest, present: Collection[str]
) -> tuple[LockedWheel, ...]:
    """The index's wheels for *request* that are not *present*."""
    tag = tag_of(plain.resolution)
    new: tuple[LockedWheel, ...] = ()
    if component.requires or component.wheels:
        try:
            new = tuple(wheel for wheel in index.wheels(request) if wheel.name not in present)
        except Unresolvable as error:
            raise Unresolvable(
                f"{component.name} conflicts with the locked packages of {tag}: {error.message}",
                hint=f"constrain it under `components: {component.name}` in matrix.yaml, or upgrade the plain"
                " image: torchkiln lock TAG --upgrade PACKAGE",
            ) from error
    if not (new or component.wheels or component.program):
        raise ConfigError(
            f"--with {component.name}: adds nothing: {tag} has all its packages already",
            hint=f"omit it, or add requirements under `components: {component.name}` in matrix.yaml",
        )
    return new
