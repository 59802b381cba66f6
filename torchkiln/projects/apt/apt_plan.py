"""Reads what apt would do, from the output of `apt-get --simulate`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchkiln.model.lock import OsPackage

_INSTALL = re.compile(
    r"Inst (?P<name>[a-z0-9][a-z0-9+.-]*)(?::\w+)? (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+) .*"
)
_REMOVE = re.compile(r"(?:Remv|Purg) (?P<name>[a-z0-9][a-z0-9+.-]*)(?::\w+)? \[(?P<old>[^\]]+)\].*")
_UNKNOWN = re.compile(r"E: Unable to locate package (\S+)")
_NO_VERSION = re.compile(r"E: Version '(?P<version>[^']+)' for '(?P<name>[^']+)' was not found")
_VIRTUAL = re.compile(r"E: Package '([^']+)' has no installation candidate")
_PROVIDED = re.compile(r"Package (\S+) is a virtual package provided by:")
_PROVIDER = re.compile(r"  ([a-z0-9][a-z0-9+.-]*)(?::\w+)? .*")
_DEPENDENCY = re.compile(r" *\S+ : (Pre-?)?(Depends|Breaks|Conflicts): .+|  +(Depends|Breaks|Conflicts): .+")
_REMOVED = " → (removed)"
_MAX_LINES = 5  # in a message; the first lines name the cause, later lines follow from it


@dataclass(frozen=True, kw_only=True, slots=True)
class AptPlan:
    """The packages that apt would add, and what it would do to installed ones."""

    added: tuple[OsPackage, ...]  # sorted by name
    changes: tuple[str, ...]  # "libssl3 3.0.17 → 3.0.18", "mawk 1.3.4 → (removed)"


def plan_of(lines: Iterable[str]) -> AptPlan:
    """The plan in the output *lines*."""
    added, changes = [], []
    for line in lines:
        if found := _INSTALL.fullmatch(line):
            if found["old"]:
                changes.append(f"{found['name']} {found['old']} → {found['new']}")
            else:
                added.append(OsPackage(name=found["name"], version=found["new"]))
        elif found := _REMOVE.fullmatch(line):
            changes.append(f"{found['name']} {found['old']}{_REMOVED}")
    return AptPlan(
        added=tuple(sorted(added, key=lambda package: package.name)), changes=tuple(sorted(changes))
    )


def is_removal(change: str) -> bool:
    """Whether one of `AptPlan.changes` removes a package."""
    return change.endswith(_REMOVED)


def unknown(lines: Iterable[str], os_name: str) -> tuple[str, ...]:
    """A message for each package that, according to the errors in *lines*, the archive of *os_name* lacks."""
    return tuple(dict.fromkeys(_unknown(list(lines), os_name)))


def _unknown(lines: list[str], os_name: str) -> Iterator[str]:
    for number, line in enumerate(lines):
        if found := _UNKNOWN.fullmatch(line):
            yield f"unable to locate package {found[1]} in {os_name}"
        elif found := _NO_VERSION.fullmatch(line):
            yield f"version {found['version']!r} for {found['name']!r} was not found in {os_name}"
        elif found := _PROVIDED.fullmatch(line):
            others = ", ".join(_providers(lines[number + 1 :]))
            yield f"{found[1]} is a virtual package; name one that provides it: {others}"
        elif (found := _VIRTUAL.fullmatch(line)) and not any(
            provided[1] == found[1] for provided in map(_PROVIDED.fullmatch, lines) if provided
        ):
            yield f"package {found[1]!r} has no installation candidate in {os_name}"


def _providers(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        found = _PROVIDER.fullmatch(line)
        if found is None:
            return
        yield found[1]


def reasons(lines: Iterable[str]) -> tuple[str, ...]:
    """The first lines that say why apt has no plan."""
    found = [line.strip() for line in lines if _DEPENDENCY.fullmatch(line)]
    return tuple(found[:_MAX_LINES]) or ("(apt names no packages)",)
