"""Lists what a project changes in its image: added and replaced packages, and ignored pins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchkiln.model.lock import LockedWheel
from torchkiln.model.project import ProjectLock
from torchkiln.projects.asked import Asked
from torchkiln.projects.fixed import Ignored


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One package of a project that is not in its image, or not in this version."""

    name: str
    before: str  # the image's version; "": the image does not have the package
    after: str  # the version with the project
    asked: tuple[str, ...] = ()  # where the project requires the package, "requirements.txt:3"
    via: tuple[str, ...] = ()  # the packages that require this package
    ignored: str = ""  # the version that a lock file pins; the image keeps its own

    @property
    def why(self) -> str:
        """What requires the package, as text for the user."""
        if self.ignored:
            return f"{', '.join(self.asked)} has {self.ignored}, ignored"
        return ", ".join((*self.asked, *self.via)) or "the image's own packages"


def moves_of(
    lock: ProjectLock,
    parent: Iterable[LockedWheel],
    *,
    asked: Iterable[Asked] = (),
    via: Mapping[str, tuple[str, ...]] | None = None,
    ignored: Iterable[Ignored] = (),
) -> tuple[Move, ...]:
    """The packages that *lock* replaces, the packages that it adds, and the ignored pins.

    The three groups come in this order; each is sorted by name.

    :param parent: the wheels of the parent image.
    """
    before = {wheel.name: wheel.version for wheel in parent}
    edges = via or {}
    places: dict[str, tuple[str, ...]] = {}
    for one in asked:
        if one.by_name or not edges.get(one.name):
            places[one.name] = (*places.get(one.name, ()), one.where)
    found = [
        Move(
            name=wheel.name,
            before=before.get(wheel.name, ""),
            after=wheel.version,
            asked=places.get(wheel.name, ()),
            via=edges.get(wheel.name, ()),
        )
        for wheel in lock.wheels
    ]
    kept = [
        Move(
            name=pin.name,
            before=before.get(pin.name, ""),
            after=before.get(pin.name, ""),
            asked=(pin.where,),
            ignored=pin.version or "another version",
        )
        for pin in ignored
    ]
    return (
        *sorted(found, key=lambda move: (not move.before, move.name)),
        *sorted(kept, key=lambda move: move.name),
    )
