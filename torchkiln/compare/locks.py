"""Compares locks with each other, or with those of an earlier git revision, by packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torchkiln.compare.layers import PackageChange, package_changes
from torchkiln.errors import Stale
from torchkiln.lock.file import from_json, lock_digest
from torchkiln.lock.lock import load_locked
from torchkiln.model.contents import Package
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.util.git import Revision


@dataclass(frozen=True, kw_only=True, slots=True)
class LockChange:
    """The change of an image's lock. `a` is before, `b` after; None if there is no lock."""

    tag: str
    a: Digest | None
    b: Digest | None
    packages: tuple[PackageChange, ...]
    swapped: tuple[PackageChange, ...]  # the same version with a different file: `a` and `b` are its sha256
    base: tuple[Digest | None, Digest | None]

    @property
    def same(self) -> bool:
        """Whether both locks specify the same packages and files; recorded layers are not compared."""
        return self.a == self.b

    def count(self, what: str) -> int:
        """The number of packages that were `added`, `removed` or `moved` (to another version)."""
        return sum(kind_of(change) == what for change in self.packages)


def kind_of(change: PackageChange) -> str:
    """`added`, `removed` or `moved`."""
    return "added" if not change.a else "removed" if not change.b else "moved"


def lock_change(tag: str, a: LockedCell | None, b: LockedCell | None) -> LockChange:
    """Compare the locks *a* and *b* of the image *tag*."""
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
    """The changes of the images *tags*, in that order; unchanged locks are left out."""
    changes = (lock_change(tag, a.get(tag), b.get(tag)) for tag in tags)
    return tuple(change for change in changes if not change.same)


def changes_since(
    revision: Revision, images: Path, tags: Sequence[str], say: Callable[[str], None]
) -> tuple[LockChange, ...]:
    """How the locks of *tags*, or of all images, differ from those of *revision*.

    :param say: gets a warning for each earlier lock that this version cannot read; such a lock is ignored.
    :raises Stale: a current lock is invalid.
    """
    chosen = tags or sorted(revision.names() | {path.parent.name for path in images.glob("*/lock.json")})
    before = {tag: locked for tag in chosen if (locked := _earlier(revision, tag, say))}
    now = {tag: load_locked(images, tag) for tag in chosen if (images / tag / "lock.json").exists()}
    return lock_changes(before, now, chosen)


def _earlier(revision: Revision, tag: str, say: Callable[[str], None]) -> LockedCell | None:
    data = revision.read(f"{tag}/lock.json")
    try:
        return from_json(data, where=f"{revision.name}:{tag}/lock.json") if data is not None else None
    except Stale as error:
        say(f"ignored: {error.message}")
        return None


def _packages(locked: LockedCell | None) -> list[Package]:
    if locked is None:
        return []
    package = partial(Package, place="")
    return [
        *(package(system="python", name=wheel.name, version=wheel.version) for wheel in locked.wheels),
        *(package(system="os", name=deb.name, version=deb.version) for deb in locked.os_packages),
        *(package(system="toolkit", name=part.component, version=part.version) for part in locked.archives),
        *(package(system="os", name=name, version=version) for name, version, _ in _python(locked)),
    ]


def _swapped(a: LockedCell, b: LockedCell) -> tuple[PackageChange, ...]:
    """Files that changed although their version did not: an index must not replace the files of a release."""
    earlier = {(name, version): sha256 for name, version, sha256 in _files(a)}
    return tuple(
        PackageChange(system="python", place="", name=f"{name} {version}", a=before, b=sha256)
        for name, version, sha256 in _files(b)
        if (before := earlier.get((name, version), sha256)) != sha256
    )


def _files(locked: LockedCell) -> list[tuple[str, str, str]]:
    wheels = [(wheel.name, wheel.version, wheel.sha256) for wheel in locked.wheels]
    archives = [(archive.component, archive.version, archive.sha256) for archive in locked.archives]
    return [*wheels, *archives, *_python(locked)]


def _python(locked: LockedCell) -> list[tuple[str, str, str]]:
    """Name, version and hash of the standalone Python, if the image has one."""
    found = locked.standalone
    return [("cpython", found.version, found.sha256)] if found else []
