"""Chooses versions: the newest ones of a project's new packages, and the image's versions of its packages.

A resolver that prefers the image's versions, or sees all its packages, may choose an old release of a new
package that has no bounds yet: datasets 2.14.4, because the image has a newer fsspec than datasets 4 allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import Unresolvable
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.uv import Pin
from torchkiln.model.index import IndexRequest, KnownWheel, LocalWheel
from torchkiln.model.lock import LockedCell
from torchkiln.projects.asked import Asked
from torchkiln.projects.fixed import fixed_wheels

_MINORS = 5  # a package is far behind if it is older by more minor versions, or by a major version
_MOST = 5  # packages that are tried in their newest release: each takes two more resolutions


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A package that the project names, locked in a release far older than the newest one that fits."""

    name: str
    version: str
    newest: str
    why: str  # the resolver's explanation why it is not the newest


@dataclass(frozen=True, kw_only=True, slots=True)
class Settler:
    """Chooses versions for requests of one project on the image of `parent`.

    `own`: the project's requirements; `kept`: versions of its previous lock; `image`: the image's wheels,
    each as the only candidate of its package, or () if the cache lacks one of them.
    """

    index: PackageIndex
    parent: LockedCell
    own: tuple[str, ...]
    kept: Mapping[str, str]
    image: tuple[LocalWheel, ...] = ()

    def settled(self, wanted: IndexRequest) -> tuple[Pin, ...]:
        """The versions for *wanted*.

        First it chooses the versions of new packages, as in an environment of the project alone. Then it
        chooses all versions; the image's packages keep their versions if the new packages allow that.

        :raises Unresolvable: the requirements conflict.
        """
        try:
            return self._around(self._alone(wanted), wanted)
        except Unresolvable:  # the image's other packages conflict with these versions
            return self._around(self.index.pins(replace(wanted, keep=_pairs(self.kept))), wanted)

    def _alone(self, wanted: IndexRequest) -> tuple[Pin, ...]:
        """The versions for the project's requirements; what the fixed packages require is ignored."""
        fixed = fixed_wheels(self.parent.wheels)
        own = without(fixed, self.own)
        known = tuple(
            KnownWheel(
                name=wheel.name,
                version=wheel.version,
                filename=wheel.filename,
                sha256=wheel.sha256,
                requires=(),
            )
            for wheel in fixed.values()
        )
        request = replace(
            wanted,
            requirements=own,
            constraints=without(fixed, wanted.constraints),
            keep=_pairs(self.kept),
            bound=(),
            known=known,
        )
        return self.index.pins(request) if own else ()

    def _around(self, free: Iterable[Pin], wanted: IndexRequest) -> tuple[Pin, ...]:
        """The versions for *wanted*; packages in *free* that the image does not have keep their versions."""
        before = {wheel.name: wheel.version for wheel in self.parent.wheels}
        new = tuple(f"{pin.name}=={pin.version}" for pin in free if pin.name not in before)
        keep = _pairs({**before, **self.kept})
        request = replace(wanted, constraints=(*wanted.constraints, *new), keep=keep)
        if offered := self._unmoved(wanted):
            # Usually no package of the image has to change. Then the pages of its 130 packages are not read.
            with suppress(Unresolvable):
                return self.index.pins(replace(request, local=(*request.local, *offered)))
        return self.index.pins(request)

    def _unmoved(self, wanted: IndexRequest) -> tuple[LocalWheel, ...]:
        """The image's wheels, without packages in *wanted*; () if the previous lock replaced one of them."""
        before = {wheel.name: wheel.version for wheel in self.image}
        if any(before.get(name, version) != version for name, version in self.kept.items()):
            return ()
        given = {wheel.name for wheel in wanted.local} | {wheel.name for wheel in wanted.known}
        return tuple(wheel for wheel in self.image if wheel.name not in given)


def newest_possible(
    asked: Iterable[Asked], pins: tuple[Pin, ...], wanted: IndexRequest, settler: Settler
) -> tuple[tuple[Pin, ...], tuple[Behind, ...]]:
    """Try the newest release of each package that the project names and that is far behind in *pins*.

    :return: the versions, and the packages that stay far behind.
    """
    found: list[Behind] = []
    image = {wheel.name: wheel.version for wheel in settler.parent.wheels}
    asked = tuple(asked)
    for name, newest in _far_behind(asked, pins, wanted, settler.index):
        versions = _versions(pins)
        if not _far(versions[name], newest):  # the upgrade of another package upgraded it, too
            continue
        why, newer = "", replace(wanted, constraints=(*wanted.constraints, f"{name}=={newest}"))
        if versions[name] == image.get(name):
            why = f"the image has it; require {name}>={newest} to replace it"
        else:
            try:
                renewed = settler.settled(newer)
                new = [one.name for one in asked if one.by_name and one.name not in image]
                why = _lowered(new, versions, _versions(renewed))
            except Unresolvable as error:
                why = error.message
        if why:
            found.append(Behind(name=name, version=versions[name], newest=newest, why=why))
        else:
            pins, wanted = renewed, newer
    versions, known = _versions(pins), {one.name for one in found}
    for name, specifier in _unpinned(asked, versions):
        newest = settler.index.newest(name, wanted, specifier, sdist=True)
        if newest and name not in {*known, *image} and _far(versions[name], newest):
            why = (
                "that has no wheel for this image, only source code; to have it built, write"
                f' build = ["{name}"] into torchkiln.toml'
            )
            found.append(Behind(name=name, version=versions[name], newest=newest, why=why))
    return pins, tuple(found)


def _lowered(names: Iterable[str], before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A phrase about the first of *names* that is older *after* than *before*; empty: there is none."""
    for name in names:
        if name in before and name in after and Version(after[name]) < Version(before[name]):
            return f"with it, {name} would be {after[name]}, not {before[name]}"
    return ""


def without(names: Collection[str], requirements: Iterable[str]) -> tuple[str, ...]:
    """*requirements* without those on packages in *names*."""
    return tuple(text for text in requirements if canonicalize_name(Requirement(text).name) not in names)


def _versions(pins: Iterable[Pin]) -> dict[str, str]:
    return {pin.name: pin.version for pin in pins}


def _far_behind(
    asked: Iterable[Asked], pins: Iterable[Pin], wanted: IndexRequest, index: PackageIndex
) -> Iterator[tuple[str, str]]:
    """The first packages that *asked* names and that are far behind, with their newest release."""
    versions, count = _versions(pins), 0
    for name, specifier in _unpinned(asked, versions):
        newest = index.newest(name, wanted, specifier)
        if newest and _far(versions[name], newest) and count < _MOST:
            count += 1
            yield name, newest


def _unpinned(asked: Iterable[Asked], versions: Mapping[str, str]) -> Iterator[tuple[str, SpecifierSet]]:
    """The packages in *versions* that *asked* names without an exact version, with their bounds."""
    allowed: dict[str, SpecifierSet] = {}
    for one in asked:
        if one.by_name and one.name in versions:
            allowed[one.name] = allowed.get(one.name, SpecifierSet()) & one.requirement.specifier
    for name, specifier in allowed.items():
        if not any(part.operator in ("==", "===") and "*" not in part.version for part in specifier):
            yield name, specifier


def _far(version: str, newest: str) -> bool:
    old, new = Version(version), Version(newest)
    same = (old.epoch, old.major) == (new.epoch, new.major)
    return new.minor - old.minor > _MINORS if same else old < new


def _pairs(versions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))
