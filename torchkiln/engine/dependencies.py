"""Checks that the METADATA of the wheels in the store agrees with the lock.

A lock is resolved from the metadata that an index serves, without the wheels. If that metadata differs from
the metadata in the wheels, packages of the image may be missing or have the wrong version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.model.index import WheelMetadata
from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.model.index import WheelMetadata
from torchkiln.model.platform import PLATFORMS
from torchkiln.model.recipe import ImagePython
from torchkiln.wheel.install import same_version

_RECORDS = "agreed"
_RULES = 1  # raise it when the check changes
_SHOWN = 5


def check_metadata(locked: LockedCell, store: Store, further: Sequence[str] = ()) -> None:
    """Check name, version and requirements of each wheel of *locked* that is in *store*.

    A pruned wheel was checked when its layer was made.

    :param further: requirements in addition to those of *locked*; they may have extras.
    :raises BuildFailed: a requirement is not locked, or is locked in another version; the message names the
        wheel.
    :raises BadWheel: METADATA cannot be read.
    """
    present = [wheel for wheel in locked.wheels if store.has_wheel(wheel)]
    requested = (*locked.resolution.requirements, *further)
    inputs = {
        "rules": _RULES,
        "wheels": [(wheel.name, wheel.version, wheel.sha256) for wheel in locked.wheels],
        "there": [wheel.sha256 for wheel in present],
        "asked": requested,
        "python": locked.python.version,
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if store.record(_RECORDS, key):
        return

    metadata = {wheel.sha256: _metadata(wheel, store) for wheel in present}
    if found := faults(locked.wheels, metadata, requested, locked.python):
        more = (f"and {len(found) - _SHOWN} more",) if len(found) > _SHOWN else ()
        raise BuildFailed(
            "\n".join(("the METADATA of the wheels conflicts with the lock:", *found[:_SHOWN], *more)),
            hint="the metadata that the index served differs from that in its wheels; lock again with an"
            " index that you trust",
        )
    store.put_record(_RECORDS, key, {"wheels": len(present)})


def _metadata(wheel: LockedWheel, store: Store) -> WheelMetadata:
    from torchkiln.model.index import read_metadata
    from torchkiln.wheel.metadata import metadata_in

    try:
        return read_metadata(metadata_in(store.wheel(wheel), wheel.filename))
    except ValueError as error:
        raise BadWheel(wheel.filename, f"METADATA cannot be read: {error}") from error


def faults(
    wheels: Iterable[LockedWheel],
    metadata: Mapping[str, WheelMetadata],
    requested: Iterable[str],
    python: ImagePython,
) -> tuple[str, ...]:
    """A sentence for each conflict of METADATA with the lock, beginning with the wheel's file name.

    :param metadata: by the wheel's sha256; wheels that are missing here are not checked.
    :param requested: the requirements of the lock, which may have extras.
    :param python: the image's.
    """
    locked = {wheel.name: wheel for wheel in wheels}
    extras = _extras(locked, metadata, requested, python)
    found = []
    for wheel in locked.values():
        if own := metadata.get(wheel.sha256):
            reasons = (*_own_faults(wheel, own, python), *_missing(locked, own, extras[wheel.name], python))
            found += [f"{wheel.filename}: {reason}" for reason in reasons]
    return tuple(found)


def _own_faults(wheel: LockedWheel, metadata: WheelMetadata, python: ImagePython) -> Iterator[str]:
    """Conflicts of the wheel with its own METADATA or with the image's Python."""
    name, version = metadata.name, metadata.version
    if canonicalize_name(name) != wheel.name or not same_version(version, wheel.version):
        yield f"inconsistent name or version: METADATA has Name {name!r} and Version {version!r}"
    try:
        if not SpecifierSet(metadata.requires_python).contains(python.version, prereleases=True):
            yield f"requires a different Python: {python.version} not in {metadata.requires_python!r}"
    except InvalidSpecifier:
        yield f"invalid Requires-Python: {metadata.requires_python[:80]!r}"


def _missing(
    locked: Mapping[str, LockedWheel], metadata: WheelMetadata, extras: set[str], python: ImagePython
) -> Iterator[str]:
    """The requirements of a wheel with *extras* that the lock does not satisfy."""
    for text in metadata.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield f"invalid Requires-Dist: {text[:80]!r}"
            continue
        if not _applies(requirement, extras, python):
            continue
        found = locked.get(canonicalize_name(requirement.name))
        if found is None:
            yield f"requires {text[:120]}, which is not locked"
        elif not requirement.specifier.contains(found.version, prereleases=True):
            yield f"requires {text[:120]}, but {found.name} {found.version} is locked"


def _extras(
    locked: Mapping[str, LockedWheel],
    metadata: Mapping[str, WheelMetadata],
    requested: Iterable[str],
    python: ImagePython,
) -> dict[str, set[str]]:
    """By package: its extras that *requested* or the locked wheels request."""
    found: dict[str, set[str]] = {name: set() for name in locked}
    waiting = [Requirement(text) for text in requested]
    for name in locked:
        waiting += _active(locked, metadata, name, set(), python)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found or requirement.extras <= found[name]:
            continue
        found[name] |= requirement.extras
        waiting += _active(locked, metadata, name, found[name], python)
    return found


def _active(
    locked: Mapping[str, LockedWheel],
    metadata: Mapping[str, WheelMetadata],
    name: str,
    extras: set[str],
    python: ImagePython,
) -> Iterator[Requirement]:
    """The requirements of *name* with *extras* whose markers apply and that request extras of a package."""
    own = metadata.get(locked[name].sha256)
    for text in own.requires if own else ():
        if "[" not in text:
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.extras and _applies(requirement, extras, python):
            yield requirement


def _applies(requirement: Requirement, extras: set[str], python: ImagePython) -> bool:
    marker = requirement.marker
    if marker is None:
        return True
    environment = PLATFORMS[python.platform].markers(python.version)
    return any(marker.evaluate(environment | {"extra": extra}) for extra in ("", *extras))
