"""Two locks of an image → what a reviewer asks: packages that came, went, moved or were swapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchkiln.compare.layers import PackageChange, package_changes
from torchkiln.lock.file import lock_digest
from torchkiln.model.contents import Package
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell


@dataclass(frozen=True, kw_only=True, slots=True)
class LockChange:
    """What one image's lock says otherwise. `a` is before, `b` now; None where there is no lock."""

    tag: str
    a: Digest | None
    b: Digest | None
    packages: tuple[PackageChange, ...]
    swapped: tuple[PackageChange, ...]  # the same version, but another file: `a` and `b` are its sha256
    base: tuple[Digest | None, Digest | None]

    @property
    def same(self) -> bool:
        """Whether the locks ask for the same bytes; what only names them anew, a seal or layers, is none."""
        return self.a == self.b

    def count(self, what: str) -> int:
        """How many packages were `added`, `removed`, `moved`."""
        return sum(kind_of(one) == what for one in self.packages)


def kind_of(change: PackageChange) -> str:
    """`added`, `removed` or `moved`."""
    return "added" if not change.a else "removed" if not change.b else "moved"


def lock_change(tag: str, a: LockedCell | None, b: LockedCell | None) -> LockChange:
    """What differs between the locks *a* and *b* of the image *tag*."""
    return LockChange(
        tag=tag,
        a=lock_digest(a) if a else None,
        b=lock_digest(b) if b else None,
        packages=package_changes(_packages(a), _packages(b)),
        swapped=_swapped(a, b) if a and b else (),
        base=(a.base.digest if a else None, b.base.digest if b else None),
    )


def lock_changes(
    a: Mapping[str, LockedCell], b: Mapping[str, LockedCell], tags: Iterable[str]
) -> tuple[LockChange, ...]:
    """The images among *tags* whose locks differ, in that order."""
    found = (lock_change(tag, a.get(tag), b.get(tag)) for tag in tags)
    return tuple(one for one in found if not one.same)


def _packages(locked: LockedCell | None) -> list[Package]:
    if locked is None:
        return []
    wheels = [Package(system="python", place="", name=one.name, version=one.version) for one in locked.wheels]
    os = [Package(system="os", place="", name=one.name, version=one.version) for one in locked.os_packages]
    toolkit = [
        Package(system="toolkit", place="", name=one.component, version=one.version)
        for one in locked.archives
    ]
    return wheels + os + toolkit


def _swapped(a: LockedCell, b: LockedCell) -> tuple[PackageChange, ...]:
    """No index may do this; who reviews must see it if one did. Nor may an archive of NVIDIA's change."""
    was = {(name, version): sha256 for name, version, sha256 in _files(a)}
    return tuple(
        PackageChange(system="python", place="", name=f"{name} {version}", a=before, b=sha256)
        for name, version, sha256 in _files(b)
        if (before := was.get((name, version), sha256)) != sha256
    )


def _files(locked: LockedCell) -> list[tuple[str, str, str]]:
    wheels = [(one.name, one.version, one.sha256) for one in locked.wheels]
    return wheels + [(one.component, one.version, one.sha256) for one in locked.archives]
