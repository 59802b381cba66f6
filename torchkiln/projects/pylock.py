"""Reads pylock.toml (PEP 751): the packages that it pins for an image, by their wheels or by commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import (
    Package,
    PackageVcs,
    Pylock,
    PylockUnsupportedVersionError,
    PylockValidationError,
)
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.projects.asked import Asked, ProjectNeeds, Repository
from torchkiln.projects.choice import HINT, NO_CHOICE, Choice
from torchkiln.projects.files import Lines
from torchkiln.projects.sources.by_commit import repository_at
from torchkiln.util.toml import toml_of

FILE = "pylock.toml"
_MOST = 5_000  # packages
_HINT = "build a wheel of each (python -m pip wheel --no-deps), put it on a package index, and lock again"


def needs_of_pylock(
    lock: bytes,
    name: str,
    by_name: frozenset[str],
    environment: Mapping[str, str],
    choice: Choice = NO_CHOICE,
) -> ProjectNeeds:
    """The packages that *lock* pins for an image with *environment*, and the extras and groups of *choice*.

    :param by_name: the packages that pyproject.toml names; empty: not known.
    :raises ConfigError: the lock is invalid, lacks an extra or a group, or has packages without wheels; lists
        all.
    """
    try:
        found = Pylock.from_dict(toml_of(lock))
        groups = _normal(found.dependency_groups) | _normal(found.default_groups)
        if unknown := choice.unknown(FILE, _normal(found.extras), groups):
            raise ConfigError.of(unknown, hint=HINT)
        packages = [package for package in found.packages if _applies(package, found, environment, choice)]
    except (
        ValueError,
        PylockValidationError,
        PylockUnsupportedVersionError,
        UndefinedComparison,
        UndefinedEnvironmentName,
    ) as error:
        raise ConfigError(f"{FILE}: {error}", hint="recreate it with the tool that wrote it") from None
    lines = Lines(FILE, lock.decode())
    faults: list[str] = []
    requirements: list[Asked] = []
    for package in packages[:_MOST]:
        where = lines.package(package.name)
        hashes = tuple(
            wheel.hashes["sha256"].lower() for wheel in package.wheels or () if "sha256" in wheel.hashes
        )
        known = not by_name or package.name in by_name
        if package.vcs:
            try:
                repository = _repository(package.vcs)
            except ValueError as error:
                faults.append(f"{where}: {package.name}: {error}")
            else:
                requirements.append(
                    Asked(text=package.name, where=where, by_name=known, repository=repository)
                )
        elif why := _unfit(package):
            faults.append(f"{where}: {package.name}: {why}")
        elif not hashes:
            faults.append(f"{where}: {package.name}: its wheels have no sha256")
        else:
            text_of_pin = f"{package.name}=={package.version}"
            requirements.append(Asked(text=text_of_pin, where=where, hashes=hashes, by_name=known))
    if len(packages) > _MOST:
        faults.append(f"{FILE}: more than {_MOST} packages")
    if faults:
        raise ConfigError.of(faults, hint=_HINT)
    return ProjectNeeds(
        name=name,
        source=FILE,
        requirements=tuple(requirements),
        requires_python=str(found.requires_python or ""),
        is_lock=True,
        choice=choice,
    )


def _applies(package: Package, lock: Pylock, environment: Mapping[str, str], choice: Choice) -> bool:
    """Whether *package* is installed with *choice* and the default groups."""
    if package.marker is None:
        return True
    groups = frozenset((*(lock.default_groups or ()), *choice.groups))
    values = {key: value for key, value in environment.items() if key != "extra"}
    return package.marker.evaluate(
        {**values, "extras": frozenset(choice.extras), "dependency_groups": groups}, context="lock_file"
    )


def _normal(names: Iterable[str] | None) -> frozenset[str]:
    return frozenset(map(canonicalize_name, names or ()))


def _repository(vcs: PackageVcs) -> Repository:
    """:raises ValueError: the repository cannot be locked; the message says why."""
    if vcs.type != "git" or not vcs.url:
        raise ValueError("only git repositories with a URL are supported")
    found = repository_at(vcs.url, vcs.commit_id, vcs.subdirectory or "")
    if not found.commit:
        raise ValueError(f"commit-id {vcs.commit_id[:100]!r} does not have 40 hex digits")
    return found


def _unfit(package: Package) -> str:
    """Why *package* cannot be locked; "" if it can."""
    if package.directory:
        return "local folders cannot be locked"
    if package.archive:
        return "files at direct URLs cannot be locked"
    if not package.wheels:
        return "it has no wheel, only source code, which is not built here"
    return "" if package.version else "it has no version"
