"""Locks the packages of a project for the image of one cell, and lists what they change in it.

The image's torch, its CUDA libraries and the packages that are built for them are fixed. The other packages
of the image keep their versions where the project's requirements allow that. New packages get the newest
versions that fit the fixed packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet

from torchkiln.errors import BuildFailed, ConfigError, OnlySource, Unresolvable
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.uv import Pin
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Source
from torchkiln.model.index import IndexRequest, KnownWheel, LocalWheel
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.projects.asked import Asked, Ignored, ProjectNeeds, applies, environment_of, hashes_of
from torchkiln.projects.fixed import bounds_of, explained, fixed_wheels, movable
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.settle import Behind, Settler, newest_possible, without


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The image on which a project is installed.

    `bound`: the packages that the matrix binds to PyTorch's own index; `known`: wheels for which no index is
    queried; `torches`: see `movable`; `reasons`: see `bounds_of`;
    `wheels`: see `Settler.image`.
    """

    lock: LockedCell
    bound: tuple[str, ...] = ()
    known: tuple[KnownWheel, ...] = ()
    torches: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    wheels: tuple[LocalWheel, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedProject:
    """A lock, and what its user should know."""

    lock: ProjectLock
    source: str  # the file with the requirements
    moves: tuple[Move, ...]
    behind: tuple[Behind, ...] = ()
    notes: tuple[str, ...] = ()  # sentences
    yanked: tuple[tuple[str, str, str], ...] = ()  # name, version and reason of yanked wheels
    unread: tuple[str, ...] = ()  # what the check of the libraries needs and the cache lacks


def lock_project(
    needs: ProjectNeeds,
    parent: Parent,
    index: PackageIndex,
    *,
    as_of: str,
    kept: Mapping[str, str],
    local: tuple[LocalWheel, ...] = (),
    untrusted: Collection[Source] = (),
) -> LockedProject:
    """The lock of the project with *needs* on the image *parent*.

    :param as_of: as in `LockRequest`.
    :param kept: the versions of the previous lock of packages that are not upgraded.
    :param local: the wheels that may be chosen in addition to those of the index.
    :param untrusted: the untrusted indexes; the lock is marked if it uses one.
    :raises ConfigError: the project excludes the image's Python or one of its fixed packages.
    :raises Unresolvable: its requirements conflict with each other or with the fixed packages.
    :raises BuildFailed: an index cannot be read, or a file has a different hash than the project requires.
    """
    cell, tag = parent.lock, tag_of(parent.lock.resolution)
    _require_python(needs, cell)
    fixed = fixed_wheels(cell.wheels)
    asked = [_applying(some, cell) for some in (needs.requirements, needs.constraints)]
    requirements, ignored = movable(needs, asked[0], fixed, parent.torches)
    constraints, more = movable(needs, asked[1], fixed, parent.torches)
    ignored = (*needs.ignored, *ignored, *more)
    skipped = {(one.name, one.where) for one in ignored}
    same = [one for one in (*asked[0], *asked[1]) if (one.name, one.where) not in skipped]
    _require_hashes(same, fixed, needs.source)
    bounds = bounds_of(cell, parent.reasons)
    wanted = replace(_request(requirements, constraints, parent, as_of), local=local)
    own = tuple(asked.text for asked in requirements)
    settler = Settler(index=index, parent=cell, own=own, kept=kept, image=parent.wheels)
    try:
        pins = settler.settled(wanted)
        old: tuple[Behind, ...] = ()
        if not needs.is_lock:
            pins, old = newest_possible(requirements, pins, wanted, settler)
        before = {wheel.name: wheel for wheel in cell.wheels}
        by_file = {one.name for one in requirements if one.by_file}
        moved = [pin for pin in pins if _moves(pin, before.get(pin.name), by_file=pin.name in by_file)]
        if wrong := sorted(pin.name for pin in moved if pin.name in fixed):
            raise BuildFailed(f"{tag}: the resolver replaced fixed packages: {', '.join(wrong)}")
        wheels = index.locked(moved, wanted)
    except Unresolvable as error:
        hint = f"change the requirements in {needs.source}, or choose another --torch"
        if labelled := [one.text for one in requirements if "+" in one.text and one.name in error.message]:
            public = ", ".join(re.sub(r"\+[\w.]+", "", text) for text in labelled)
            hint = f"a version with + was built for one machine or index: write {public}; or {hint}"
        if isinstance(error, OnlySource):
            build = json.dumps(sorted({*needs.build, *error.names}))
            hint = (
                f"to have it built in a sandbox, write build = {build} into torchkiln.toml beside"
                f" {needs.source}, or under [tool.torchkiln] in pyproject.toml; or put a wheel into a folder"
                ' (wheels = "wheels"): see docs/projects.md'
            )
            if named := " ".join(sorted({*needs.build} & {*error.names})):
                hint = (
                    f"{named}: named in build, but only a .tar.gz can be built: in the project's folder, run"
                    f" python -m pip wheel --no-deps --wheel-dir wheels {named}, and write"
                    ' wheels = "wheels" into torchkiln.toml'
                )
        raise Unresolvable(
            f"{needs.name}: {needs.source} cannot be installed in {tag}: {explained(error.message, bounds)}",
            hint=hint,
        ) from error
    now = before | {wheel.name: wheel for wheel in wheels}
    _require_hashes((*requirements, *constraints), now, needs.source)
    lock = ProjectLock(
        name=needs.name,
        parent=tag,
        parent_lock=lock_digest(cell),
        as_of=as_of,
        inputs=inputs_digest(needs, cell),
        requirements=tuple(asked.text for asked in needs.requirements),
        extras=needs.choice.extras,
        groups=needs.choice.groups,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        removed=tuple(sorted(wheel.name for wheel in wheels if wheel.name in before)),
        origins=_origins(wheels, needs),
        untrusted=bool({wheel.index for wheel in wheels} & {*untrusted}),
    )
    via = {pin.name: pin.via for pin in pins}
    return LockedProject(
        lock=lock,
        source=needs.source,
        moves=moves_of(lock, cell.wheels, asked=requirements, via=via, ignored=ignored),
        behind=tuple(replace(one, why=explained(one.why, bounds)) for one in old),
    )


def _moves(pin: Pin, before: LockedWheel | None, *, by_file: bool) -> bool:
    """Whether *pin* replaces *before*, the image's wheel of the package, or adds a package."""
    if before is None or before.version != pin.version:
        return True
    return by_file and before.sha256 not in pin.hashes


def _origins(wheels: Iterable[LockedWheel], needs: ProjectNeeds) -> tuple[Origin, ...]:
    """The origins of the *wheels* that are not from an index; `Sdists.finish` adds how they were built."""
    urls = {one.name: one.url for one in needs.requirements if one.url}
    required = {one.path for one in needs.requirements if one.path}
    # A wheel that is required by path may also be in the folder of the setting: the required path is used.
    ordered = sorted(needs.own, key=lambda wheel: wheel.path in required)
    paths = {wheel.sha256: wheel.path for wheel in ordered}
    return tuple(
        Origin(name=wheel.name, path=paths[wheel.sha256])
        if wheel.sha256 in paths
        else Origin(name=wheel.name, url=urls.get(wheel.name, ""))
        for wheel in sorted(wheels, key=lambda wheel: wheel.name)
        if wheel.index is Source.PROJECT
    )


def _require_python(needs: ProjectNeeds, cell: LockedCell) -> None:
    """:raises ConfigError: the project excludes the image's Python."""
    python = cell.python.version
    if not SpecifierSet(needs.requires_python).contains(python, prereleases=True):
        raise ConfigError(
            f"{needs.name}: requires Python {needs.requires_python}, but the image"
            f" {tag_of(cell.resolution)} has {python}",
            hint="change requires-python, or choose another --os",
        )


def _applying(asked: Iterable[Asked], cell: LockedCell) -> tuple[Asked, ...]:
    environment = environment_of(cell.python.version)
    return tuple(one for one in asked if applies(one.requirement, environment))


def _request(
    requirements: Iterable[Asked], constraints: Iterable[Asked], parent: Parent, as_of: str
) -> IndexRequest:
    """The request for one environment with the packages of *parent* and of the project.

    The project's requirements come first, because uv chooses versions in that order. All packages of the
    image are required, because the image keeps even those that no other package requires any more.
    """
    resolution, known = parent.lock.resolution, {wheel.name for wheel in parent.known}
    names = (wheel.name for wheel in parent.lock.wheels)
    own = (asked.text for asked in requirements)
    listed = dict.fromkeys((*own, *resolution.requirements, *names))
    bounds = (f"{bound.name}{bound.versions}" for bound in bounds_of(parent.lock))
    of_pytorch = resolution.build is not None and resolution.build.source is Source.PYTORCH
    return IndexRequest(
        requirements=without(known, listed),
        constraints=without(known, (*bounds, *(asked.text for asked in constraints))),
        python=resolution.cell.python,
        glibc=operating_system(resolution.cell.os).glibc,
        as_of=as_of,
        keep=(),
        bound=parent.bound if of_pytorch and not parent.lock.by_record else (),
        known=parent.known,
    )


def _require_hashes(asked: Iterable[Asked], wheels: Mapping[str, LockedWheel], source: str) -> None:
    """:raises BuildFailed: wheels have different hashes than the project requires; lists all."""
    of_pytorch = {name for name, wheel in wheels.items() if wheel.index is Source.PYTORCH}
    allowed = hashes_of(one for one in asked if not one.of_pytorch or one.name in of_pytorch)
    wrong = [
        f"{wheel.filename}: checksum mismatch: expected sha256"
        f" {' or '.join(sorted(allowed[name])[:3])}, got {wheel.sha256}"
        for name, wheel in sorted(wheels.items())
        if name in allowed and wheel.sha256 not in allowed[name]
    ]
    if wrong:
        heading = f"{source}: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE:"
        raise BuildFailed(
            "\n".join((heading, *wrong)),
            hint=f"if you have changed a version, update the hashes in {source}; else compare both files",
        )
