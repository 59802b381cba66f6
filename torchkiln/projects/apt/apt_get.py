"""Resolves packages on the layers of an OS with apt.

apt runs on this machine with the package list of an unpacked root, and checks the archive's signature. What
it would do is read from the output of `apt-get --simulate`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.base.archive import keep, missing, read_dates, read_lists
from torchkiln.base.complaint import LOGIN
from torchkiln.base.mmdebstrap import DEBS, PINS, Scratch, scratch
from torchkiln.base.on_top import existing
from torchkiln.base.recipe import recipe
from torchkiln.errors import BuildFailed, Unresolvable
from torchkiln.model.apt import OsLayers
from torchkiln.model.lock import DebFile, OsPackage
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.store.store import Store

_INSTALL = re.compile(
    r"Inst (?P<name>[a-z0-9][a-z0-9+.-]*)(?::\w+)? (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+) .*"
)
_REMOVE = re.compile(r"(?:Remv|Purg) (?P<name>[a-z0-9][a-z0-9+.-]*)(?::\w+)? \[(?P<old>[^\]]+)\].*")
# apt's reasons: errors, what provides a virtual package, unmet dependencies.
_REASON = re.compile(
    r"E: .+|Package \S+ is a virtual package provided by:|  [a-z0-9][a-z0-9+.-]*(:\w+)? \S+( \(= \S+\))?"
    r"|( *\S+ :| ) +(Pre-?Depends|Depends|Breaks|Conflicts): .+"
)
_REMOVED = " → (removed)"
_MAX_LINES = 5  # in a message; the first lines name the cause, later lines follow from it
_PLAN, _FREELY = "/torchkiln-plan", "/torchkiln-plan-without-pins"
_OK = "torchkiln: apt has a plan"
_SHOWN = 8  # maximum number of packages in a message
_OLD = (
    "lock the image with today's packages: torchkiln lock TAG --upgrade-base; or require older versions:"
    " NAME=VERSION"
)
_CONFLICT = "remove the packages that conflict with the image from apt in the project's settings"

# Writes apt's plan, and downloads its packages. If there is none, writes the plan that apt makes without
# pins.
_RESOLVE = f"""
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
: >"$1{_FREELY}"
mkdir -p "$1{DEBS}"
if apt-get --simulate install {{packages}} >"$1{_PLAN}" 2>&1; then
    echo "{_OK}" >>"$1{_PLAN}"
    grep -q "^Remv " "$1{_PLAN}" || apt-get --yes --download-only install {{packages}}
else
    rm "$1{PINS}"
    apt-get --simulate --allow-downgrades install {{packages}} >"$1{_FREELY}" 2>&1 || :
fi
"""


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


def reasons(lines: Iterable[str]) -> tuple[str, ...]:
    """The first lines that say why apt has no plan."""
    found = [LOGIN.sub("", line).strip() for line in lines if _REASON.fullmatch(line)]
    return tuple(found[:_MAX_LINES]) or ("(apt names no packages)",)


def resolve(
    requested: Iterable[str],
    layers: OsLayers,
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting = UNREPORTED,
) -> tuple[tuple[DebFile, ...], dict[str, str]]:
    """The packages that apt adds to *layers* for *requested*, and the dates of the suites: see `read_dates`.

    The files are in *store* afterwards.

    :raises Unresolvable: the archive lacks a package, or a package requires other versions than *layers*
        have.
    :raises BuildFailed: the archive cannot be reached, or its signature is invalid.
    :raises ToolMissing: mmdebstrap or the archive's keyring is not installed.
    """
    wanted, names = recipe(layers.base.os), tuple(requested)
    with scratch(wanted, environ, report) as place:
        plan, freely, files = place.debs / "plan", place.debs / "freely", place.debs
        script = _RESOLVE.format(packages=" ".join(map(shlex.quote, names)))
        out = (
            _out("download", _PLAN, plan),
            _out("download", _FREELY, freely),
            _out("sync-out", DEBS, files),
        )
        _ask(place, store, layers, (script, *out))
        added = _demanded(names, layers, plan, freely).added
        debs = read_lists(place.lists, added)
        if lost := {package.name for package in added} - {deb.name for deb in debs}:
            raise BuildFailed(
                f"the index of the archive of {wanted.os} has no sha256 of: {', '.join(sorted(lost))}",
                hint="use another mirror",
            )
        dates = read_dates(place.lists)
        keep(files, debs, store)
    if lost_files := missing(debs, store):
        raise BuildFailed(
            f"apt did not download {_listed(lost_files)}", hint="run it again; or use another mirror"
        )
    return debs, dates


def _out(how: str, inside: str, outside: Path) -> str:
    """A hook that copies a file or a folder out of the root."""
    return f"{how} {inside} {shlex.quote(str(outside))}"


def _ask(place: Scratch, store: Store, layers: OsLayers, queries: tuple[str, ...]) -> None:
    with place.running(existing(layers.artefacts, place, store, queries=queries)) as nothing:
        while nothing.read(1 << 16):
            pass


def _demanded(names: tuple[str, ...], layers: OsLayers, plan: Path, freely: Path) -> AptPlan:
    """The plan that apt wrote to *plan*. If it found none, it wrote its plan without pins to *freely*.

    :raises Unresolvable: there is no plan, or it changes packages of *layers*, or lacks a requested package.
    """
    os_name = layers.base.os
    lines = _lines(plan)
    hint = "correct apt in the project's settings (docs/projects.md)"
    solved = _OK in lines
    found = plan_of(lines if solved else _lines(freely))
    if found.changes:
        raise Unresolvable(
            "\n".join(
                (
                    f"apt: {', '.join(names)}: would change packages that the image was tested with:",
                    *(f"  {change}" for change in found.changes[:_SHOWN]),
                    *([f"  and {len(found.changes) - _SHOWN} more"] if len(found.changes) > _SHOWN else []),
                )
            ),
            hint=_CONFLICT if all(map(is_removal, found.changes)) else _OLD,
        )
    if not solved:
        why = "\n".join(f"  {reason}" for reason in reasons(lines))
        raise Unresolvable(f"apt: {', '.join(names)}: cannot be installed in {os_name}:\n{why}", hint=hint)
    there = {package.name for package in (*found.added, *layers.packages)}
    if others := [name for name in names if name.partition("=")[0] not in there]:
        raise Unresolvable(
            "\n".join(f"apt: unable to locate package {name} in {os_name}" for name in others), hint=hint
        )
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _listed(debs: Iterable[DebFile]) -> str:
    names = [f"{deb.name} {deb.version}" for deb in debs]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
