"""Reads pylock.toml (PEP 751): the packages that it pins for an image, by their wheels or by commits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockUnsupportedVersionError,
    PylockValidationError,
)
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.projects.asked import Asked
from torchkiln.projects.choice import HINT, NO_CHOICE, Choice
from torchkiln.projects.files import Lines
from torchkiln.projects.requirement import BUILD, MOST, Requirements
from torchkiln.util.toml import toml_of

FILE = "pylock.toml"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")


def packages_of(
    lock: bytes, by_name: Collection[str], environment: Mapping[str, str], choice: Choice = NO_CHOICE
) -> tuple[tuple[Asked, ...], str]:
    """The packages that *lock* pins for an image with *environment*, and for which Python it was made.

    :param by_name: the packages that pyproject.toml names; empty: not known.
    :param choice: the extras and groups to install in addition to the default groups.
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
    requirements, lines = Requirements(), Lines(FILE, lock.decode())
    for package in packages[: MOST + 1]:
        named = not by_name or package.name in by_name
        add_package(requirements, package, lines.package(package.name), by_name=named)
    requirements.require_sound()
    return tuple(requirements.requirements), str(found.requires_python or "")


def add_package(
    found: Requirements, package: Package, where: str, *, by_name: bool, of_uv: bool = False
) -> None:
    """Add *package*, or why it cannot be locked, to *found*.

    :param of_uv: uv exported it from uv.lock. Then its marker is kept, and the sdist that it may have is
        allowed in addition to its wheels.
    """
    files: list[PackageArchive | PackageSdist | PackageWheel] = [*(package.wheels or ())]
    files += [package.sdist] if package.sdist and of_uv else []
    why = ""
    if package.directory:
        why = "local folders cannot be locked"
    elif package.vcs:
        text = f"{package.name} @ git+{package.vcs.url}@{package.vcs.commit_id}"
        text += f"#subdirectory={quote(package.vcs.subdirectory)}" if package.vcs.subdirectory else ""
        if package.vcs.type != "git" or not package.vcs.url:
            why = "only git repositories with a URL are supported"
        elif not _COMMIT.fullmatch(package.vcs.commit_id):
            why = f"commit-id {package.vcs.commit_id[:100]!r} does not have 40 hex digits"
    elif package.archive:
        files = [package.archive]
        text = f"{package.name} @ {package.archive.url or package.archive.path}"
    elif not files:
        why = "it has no wheel, only source code, which is not built here"
    else:
        text = f"{package.name}=={package.version}"
        why = "" if package.version else "it has no version"
    hashes = [file.hashes["sha256"].lower() for file in files if "sha256" in file.hashes]
    if files and not hashes:
        why = "its wheels have no sha256"
    if why:
        found.refuse(f"{where}: {package.name}: {why}", BUILD)
        return
    marker = f" ; {package.marker}" if package.marker and of_uv else ""
    allowed = "".join(f" --hash=sha256:{each}" for each in hashes)
    found.add(f"{text}{marker}{allowed}", where, by_name=by_name)


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
