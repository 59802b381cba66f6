"""Reads uv.lock, which uv exports as pylock.toml, offline and without the project's code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, Stale
from torchkiln.index.settings import redact_text
from torchkiln.projects.asked import Asked
from torchkiln.projects.choice import Choice
from torchkiln.projects.files import Lines
from torchkiln.projects.pylock import add_package
from torchkiln.projects.requirement import MOST, Requirements
from torchkiln.store.store import Store
from torchkiln.util.toml import toml_of

FILE = "uv.lock"
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
    lock: bytes, name: str, own: Iterable[Asked], choice: Choice, store: Store
) -> tuple[Asked, ...]:
    """The packages that *lock*, a uv.lock, pins for the project *name*.

    :param own: the requirements in pyproject.toml, with those of the extras and groups of *choice*.
    :raises ConfigError: the lock is invalid, lacks an extra or a group, or has packages that are not
        supported; lists all.
    :raises Stale: pyproject.toml has other dependencies than the lock.
    """
    try:
        document, lines = toml_of(lock), Lines(FILE, lock.decode())
    except ValueError as error:
        raise ConfigError(f"{FILE}: {error}", hint="recreate it: uv lock") from None
    manifest = document.get("manifest")
    members = manifest.get("members") if isinstance(manifest, dict) else None
    if isinstance(members, list) and len(members) > 1:
        raise ConfigError(
            f"{FILE}: a workspace with {len(members)} members is not supported",
            hint="build wheels of the other members, put them on a package index, and lock the project alone",
        )
    own = tuple(own)
    _require_current(name, own, choice.groups, document)
    try:
        exported = Pylock.from_dict(toml_of(_exported(name, lock, store, choice)))
    except (ValueError, PylockValidationError, PylockUnsupportedVersionError) as error:
        raise ConfigError(f"{FILE}: {error}", hint="recreate it: uv lock") from None
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
        (folder / FILE).write_bytes(lock)
        out = folder / "stdout.txt"
        with out.open("wb") as stdout:
            code, messages = run_uv((*_ARGUMENTS, *chosen), folder, "http://127.0.0.1:1", stdout=stdout)
        if code:
            text = redact_text(messages[:2000].strip())
            hint = "run: uv lock"
            if chosen:
                hint = "choose other extras and groups; or, if pyproject.toml has changed, run: uv lock"
            raise ConfigError(f"{FILE}: {text.removeprefix('error: ')}", hint=hint)
        with out.open("rb") as file:
            return file.read(_OUTPUT)


def _require_current(name: str, own: Iterable[Asked], groups: Iterable[str], lock: Mapping[str, Any]) -> None:
    """:raises Stale: *lock* was made from other dependencies than *own*, those of the project *name*."""
    packages = lock.get("package")
    tables = [one for one in packages if isinstance(one, dict)] if isinstance(packages, list) else []
    package = next((one for one in tables if one.get("name") == name), None)
    if package is None:
        return
    metadata = package.get("metadata")
    locked = {*_locked(metadata, groups)} if isinstance(metadata, dict) else set()
    asked = {(one.name, str(one.requirement.specifier), _revision(one)) for one in own}
    if missing := sorted(name for name, _, _ in asked - locked):
        raise Stale(
            f"{FILE}: the lockfile needs to be updated: made from other dependencies than pyproject.toml has:"
            f" {', '.join(missing)}",
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
    for entry in (entry for each in lists if isinstance(each, list) for entry in each):
        with suppress(InvalidSpecifier, ValueError, AttributeError):
            name = canonicalize_name(str(entry.get("name", "")))
            specifier = str(SpecifierSet(str(entry.get("specifier", ""))))
            yield name, specifier, ""
            if entry.get("git"):
                values = dict(parse_qsl(urlsplit(str(entry["git"])).query))
                revisions = (values[key] for key in ("rev", "tag", "branch") if key in values)
                yield name, specifier, next(revisions, "HEAD")
