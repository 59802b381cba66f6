"""Reads pylock.toml (PEP 751): the packages that it pins for an image, by their wheels or by commits.

uv exports uv.lock in this form, offline and without the project's code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from packaging.markers import UndefinedEnvironmentName
from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, Stale
from torchkiln.index.settings import redact_text
from torchkiln.projects.asked import MOST, Asked
from torchkiln.projects.choice import HINT, NO_CHOICE, Choice
from torchkiln.projects.elsewhere import is_pytorchs
from torchkiln.projects.files import Lines
from torchkiln.projects.fixed import comes_with_torch
from torchkiln.projects.requirement import BUILD, Requirements
from torchkiln.store.store import Store
from torchkiln.util.toml import toml_of
from torchkiln.util.wheel_names import limited

FILE = "pylock.toml"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
UV_LOCK = "uv.lock"
_OUTPUT = 16 << 20  # bytes that are read; a lock of 500 packages gives 2,000,000
_ARGUMENTS = (
    *("export", "--frozen", "--offline", "--no-build", "--no-cache", "--no-config", "--quiet"),
    *("--color", "never", "--format", "pylock.toml", "--no-emit-project", "--no-default-groups"),
    *("--no-header", "--no-annotate", "--no-python-downloads", "--python", sys.executable),
)
_PROJECT = """\
[project]
name = "{name}"
version = "0"
[tool.uv.workspace]
members = []
"""


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
        found = _parsed(lock)
        groups = _normal(found.dependency_groups) | _normal(found.default_groups)
        if unknown := choice.unknown(FILE, _normal(found.extras), groups):
            raise ConfigError.of(unknown, hint=HINT)
        packages = [package for package in found.packages if _applies(package, found, environment, choice)]
    except (ValueError, PylockValidationError, UndefinedEnvironmentName) as error:
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
    files = [wheel.hashes for wheel in package.wheels or ()]
    files += [package.sdist.hashes] if package.sdist and of_uv else []
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
        files = [package.archive.hashes]
        text = f"{package.name} @ {package.archive.url or package.archive.path}"
    elif not files:
        why = "it has no wheel, only source code, which is not built here"
    else:
        text = f"{package.name}=={package.version}"
        why = "" if package.version else "it has no version"
    hashes = [file["sha256"].lower() for file in files if "sha256" in file]
    if files and not hashes:
        why = "its wheels have no sha256"
    if why:
        found.refuse(f"{where}: {package.name}: {why}", BUILD)
        return
    marker = f" ; {package.marker}" if package.marker and of_uv else ""
    allowed = "".join(f" --hash=sha256:{each}" for each in hashes)
    count = len(found.requirements)
    found.add(f"{text}{marker}{allowed}", where, by_name=by_name)
    if comes_with_torch(package.name) and any(is_pytorchs(wheel.url or "") for wheel in package.wheels or ()):
        found.requirements[count:] = [replace(one, of_pytorch=True) for one in found.requirements[count:]]


def _parsed(lock: bytes) -> Pylock:
    """*lock*, a pylock.toml; :raises ValueError, PylockValidationError: it is invalid."""
    document = toml_of(lock)
    for package in _tables(document.get("packages")):
        for wheel in _tables(package.get("wheels")):
            for name in (wheel.get("name"), wheel.get("path"), urlsplit(str(wheel.get("url"))).path):
                limited(unquote(str(name)))
    return Pylock.from_dict(document)


def _tables(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


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


def packages_of_uv(
    lock: bytes, name: str, own: Iterable[Asked], choice: Choice, store: Store
) -> tuple[Asked, ...]:
    """The packages that *lock*, a uv.lock, pins for the project *name*.

    :param own: the requirements in pyproject.toml, with those of the extras and groups of *choice*.
    :raises ConfigError: the lock is invalid, lacks an extra or a group, or has packages that are not
        supported; lists all.
    :raises Stale: pyproject.toml has other dependencies than the lock.
    """
    try:
        document, lines = toml_of(lock), Lines(UV_LOCK, lock.decode())
    except ValueError as error:
        raise ConfigError(f"{UV_LOCK}: {error}", hint="recreate it: uv lock") from None
    manifest = document.get("manifest")
    members = manifest.get("members") if isinstance(manifest, dict) else None
    if isinstance(members, list) and len(members) > 1:
        raise ConfigError(
            f"{UV_LOCK}: a workspace with {len(members)} members is not supported",
            hint="build wheels of the other members, put them on a package index, and lock the project alone",
        )
    own = tuple(own)
    _require_current(name, own, choice.groups, document)
    try:
        exported = _parsed(_exported(name, lock, store, choice))
    except (ValueError, PylockValidationError) as error:
        raise ConfigError(f"{UV_LOCK}: {error}", hint="recreate it: uv lock") from None
    found, named = Requirements(), {asked.name for asked in own}
    for package in exported.packages[: MOST + 1]:
        where = lines.package(package.name)
        add_package(found, package, where, by_name=package.name in named, of_uv=True)
    found.require_sound()
    # In this order the lock's inputs are those that earlier versions computed from uv's requirements.txt.
    return tuple(sorted(found.requirements, key=lambda asked: (not asked.path, asked.path)))


@lru_cache(maxsize=1)  # `build --watch` calls it after each change of the code
def _exported(name: str, lock: bytes, store: Store, choice: Choice) -> bytes:
    """The packages of *lock* that the project *name* needs to run with *choice*, as pylock.toml.

    uv gets a pyproject.toml with only the name, because settings in that of the project could name other
    files. This file is the root of a workspace, so that uv reads no pyproject.toml in the folders above.

    :raises ConfigError: with uv's message, if uv cannot read the lock, the lock lacks an extra or a group, or
        these conflict.
    :raises BuildFailed: uv exceeds a limit.
    """
    from torchkiln.index.uv import private_folder, run_uv  # imported here because it loads slowly

    chosen = [f"--extra={each}" for each in choice.extras] + [f"--group={each}" for each in choice.groups]
    with private_folder(store) as folder:
        (folder / "pyproject.toml").write_text(_PROJECT.format(name=name))
        (folder / UV_LOCK).write_bytes(lock)
        out = folder / "stdout.txt"
        with out.open("wb") as stdout:
            code, messages = run_uv((*_ARGUMENTS, *chosen), folder, "http://127.0.0.1:1", stdout=stdout)
        if code:
            text = redact_text(messages.strip())[:2000]
            hint = "run: uv lock"
            if chosen:
                hint = "choose other extras and groups; or, if pyproject.toml has changed, run: uv lock"
            raise ConfigError(f"{UV_LOCK}: {text.removeprefix('error: ')}", hint=hint)
        with out.open("rb") as file:
            return file.read(_OUTPUT)


def _require_current(name: str, own: Iterable[Asked], groups: Iterable[str], lock: Mapping[str, Any]) -> None:
    """:raises Stale: *lock* was made from other dependencies than *own*, those of the project *name*."""
    package = next((one for one in _tables(lock.get("package")) if one.get("name") == name), None)
    if package is None:
        return
    metadata = package.get("metadata")
    locked = {*_locked(metadata, groups)} if isinstance(metadata, dict) else set()
    asked = {(one.name, str(one.requirement.specifier), _revision(one)) for one in own}
    if missing := sorted(name for name, _, _ in asked - locked):
        raise Stale(
            f"{UV_LOCK}: the lockfile needs to be updated: made from other dependencies than pyproject.toml"
            f" has: {', '.join(missing)}",
            hint="run: uv lock",
        )


def _revision(asked: Asked) -> str:
    return asked.repository.revision if asked.repository else ""


def _locked(metadata: Mapping[str, Any], groups: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, versions and revision of each dependency in *metadata*, and of those of extras and *groups*.

    A dependency with a repository is listed twice: without its revision, because pyproject.toml can name the
    repository in [tool.uv.sources] instead of the requirement, and with it.
    """
    of_groups = metadata.get("requires-dev")
    by_name = of_groups if isinstance(of_groups, dict) else {}
    lists = (metadata.get("requires-dist"), *(by_name.get(group) for group in groups))
    for entry in (entry for each in lists for entry in _tables(each)):
        with suppress(InvalidSpecifier, ValueError):
            name = canonicalize_name(str(entry.get("name", "")))
            specifier = str(SpecifierSet(str(entry.get("specifier", ""))))
            yield name, specifier, ""
            if entry.get("git"):
                values = dict(parse_qsl(urlsplit(str(entry["git"])).query))
                revisions = (values[key] for key in ("rev", "tag", "branch") if key in values)
                yield name, specifier, next(revisions, "HEAD")
