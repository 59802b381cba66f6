"""What the METADATA of locked wheels ask for → what the lock lacks, as `pip check` would find it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.model.index import WheelMetadata
from torchkiln.model.lock import LockedWheel
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.model.recipe import minor


def faults(
    wheels: Iterable[LockedWheel],
    metadata: Mapping[str, WheelMetadata],
    asked: Iterable[str],
    python: str,
) -> tuple[str, ...]:
    """Where METADATA disagree with the lock, a sentence each that begins with the wheel's file name.

    :param metadata: by the wheel's sha256; of a wheel that is missing here nothing is said.
    :param asked: the requirements that the lock was made from; they may ask for extras.
    :param python: the image's, "3.11.2".
    """
    locked = {wheel.name: wheel for wheel in wheels}
    extras = _extras(locked, metadata, asked, python)
    found = []
    for wheel in locked.values():
        if told := metadata.get(wheel.sha256):
            reasons = (*_own(wheel, told, python), *_missing(locked, told, extras[wheel.name], python))
            found += [f"{wheel.filename}: {reason}" for reason in reasons]
    return tuple(found)


def _own(wheel: LockedWheel, told: WheelMetadata, python: str) -> Iterator[str]:
    """What METADATA tells of the wheel itself."""
    if canonicalize_name(told.name) != wheel.name or not _same_version(told.version, wheel.version):
        yield f"its METADATA is that of {told.name or '?'} {told.version or '?'}"
    try:
        if not SpecifierSet(told.requires_python).contains(python, prereleases=True):
            yield f"it requires Python {told.requires_python}, the image has {python}"
    except InvalidSpecifier:
        yield f"its Requires-Python cannot be read: {told.requires_python[:80]!r}"


def _missing(
    locked: Mapping[str, LockedWheel], told: WheelMetadata, extras: set[str], python: str
) -> Iterator[str]:
    """What it asks for, here and with these extras, and the lock does not have."""
    for text in told.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield f"its Requires-Dist cannot be read: {text[:80]!r}"
            continue
        if not _applies(requirement, extras, python):
            continue
        there = locked.get(canonicalize_name(requirement.name))
        if there is None:
            yield f"it requires {text[:120]}, which the lock does not have"
        elif not requirement.specifier.contains(there.version, prereleases=True):
            yield f"it requires {text[:120]}, the lock has {there.name} {there.version}"


def _extras(
    locked: Mapping[str, LockedWheel],
    metadata: Mapping[str, WheelMetadata],
    asked: Iterable[str],
    python: str,
) -> dict[str, set[str]]:
    """Project → the extras that are asked for, by the lock's requirements or by a locked wheel's."""
    found: dict[str, set[str]] = {name: set() for name in locked}
    waiting = [Requirement(text) for text in asked]
    waiting += [one for name in locked for one in _active(locked, metadata, name, set(), python)]
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
    python: str,
) -> Iterator[Requirement]:
    """The requirements of project *name* that apply, as far as they ask for extras."""
    told = metadata.get(locked[name].sha256)
    for text in told.requires if told else ():
        if "[" not in text:
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.extras and _applies(requirement, extras, python):
            yield requirement


def _applies(requirement: Requirement, extras: set[str], python: str) -> bool:
    marker = requirement.marker
    if marker is None:
        return True
    here = _environment(python)
    return any(marker.evaluate(here | {"extra": extra}) for extra in ("", *extras))


def _environment(python: str) -> dict[str, str]:
    """What markers ask of an image: CPython on our platform."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        **LINUX_AMD64.markers,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "python_full_version": python,
        "python_version": minor(python),
    }


def _same_version(told: str, locked: str) -> bool:
    """By value; a local version may be left out of a file's name, from which the lock's may come."""
    try:
        one, other = Version(told), Version(locked)
    except InvalidVersion:
        return told == locked
    return one == other or (other.local is None and Version(one.public) == other)
