"""Resolution with components, the plain cell's lock -> LockedCell: that lock, and what each component adds.

Nothing of the plain lock moves: its wheels are constraints, so that the image is the plain one with layers on
top. Components are locked one after the other, by name, each onto what the earlier ones brought; so a wheel
that two of them need belongs to the first, and `a` alone and `a` with `b` have a's layers in common.
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
    """What is needed beside indexes: files that are on none."""

    def own(self, file: OwnFile) -> LockedWheel:
        """*file*, measured and held against its hash.

        :raises Unresolvable: nobody said where it lies, or it is not there.
        """
        ...

    def requires(self, wheel: LockedWheel) -> tuple[str, ...]:
        """What a wheel from `own` asks for: PEP 508, markers included."""
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

    :param versions: those of components; *plain*'s stay.
    :param below: what *plain*'s cell, the same without components, resolves to now.
    :raises Stale: *plain* was made from another matrix or other facts.
    :raises ConfigError: a component brings nothing that *plain* lacks.
    :raises Unresolvable: a component does not fit on *plain*, or a file of it cannot be had.
    """
    require_fresh(plain, below, bound, role=", on which the components go,", run="first run")
    previous = versions.previous
    keep = versions.kept | {wheel.name: wheel.version for wheel in plain.wheels}
    wheels = {wheel.name: wheel for wheel in plain.wheels}
    asked = list(resolution.requirements)
    found: list[LockedComponent] = []
    for component in resolution.components:
        own = [index.own(file) for file in component.wheels]
        program = index.own(component.program) if component.program else None
        asked += [*component.requires, *(text for wheel in own for text in index.requires(wheel))]
        wanted = IndexRequest(
            requirements=tuple(dict.fromkeys(asked)),
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
        new = _new(component, plain, index, wanted, {*wheels, *(wheel.name for wheel in own)})
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
    component: CellComponent, plain: LockedCell, index: Index, wanted: IndexRequest, there: Collection[str]
) -> tuple[LockedWheel, ...]:
    tag = tag_of(plain.resolution)
    new: tuple[LockedWheel, ...] = ()
    if component.requires or component.wheels:
        try:
            new = tuple(wheel for wheel in index.wheels(wanted) if wheel.name not in there)
        except Unresolvable as error:
            raise Unresolvable(
                f"{component.name} does not go on {tag}, whose packages stay as they are locked:"
                f" {error.message}",
                hint=f"bound it under `components: {component.name}` in matrix.yaml, or upgrade what lies"
                " below: torchkiln lock --upgrade PACKAGE",
            ) from error
    if not (new or component.wheels or component.program):
        raise ConfigError(
            f"--with {component.name}: {tag} has all of it already, so it would be the same image",
            hint=f"leave it out, or name under `components: {component.name}` in matrix.yaml what is to come",
        )
    return new
