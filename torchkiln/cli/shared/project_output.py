"""Prints what a project changes in its image, for `project lock`."""

from __future__ import annotations

import json
from typing import Any

from torchkiln.cli.shared.lock_output import say, warn_of_yanked
from torchkiln.cli.shared.tables import table
from torchkiln.index.settings import redact
from torchkiln.model.apt import LockedApt
from torchkiln.model.project import Origin
from torchkiln.model.untrusted import USES
from torchkiln.projects.choice import choice_of
from torchkiln.projects.lock import LockedProject, Move
from torchkiln.projects.settle import Behind
from torchkiln.util import codec

_HEADER = ("package", "image", "project", "required by")
_NEW = "-"


def show_project(found: LockedProject) -> None:
    """Print the table of moved packages and the warnings on stderr."""
    lock = found.lock
    added, size = len(lock.wheels) - len(lock.removed), sum(wheel.size for wheel in lock.wheels)
    choice = choice_of(lock.extras, lock.groups)
    chosen = f" {choice.phrase}" if choice.any else ""
    say(
        f"{lock.name} on {lock.parent}, by {found.source}{chosen}: packages added: {added},"
        f" replaced: {len(lock.removed)} ({size / 1e6:.1f} MB); torch and its libraries stay as in the image"
    )
    if found.moves:
        table(_HEADER, [_row(move) for move in found.moves], text={3}, err=True)
    if lock.apt:
        say(_packages(lock.apt))
    for note in found.notes:
        say(f"warning: {note}")
    for one in found.behind:
        say(_warning(one))
    for origin in lock.origins:
        say(f"{origin.name} is {_origin(origin)}")
    if found.unread:
        say(
            f"{lock.name}: the build will check whether the libraries of these packages fit the image; not in"
            f" the cache now: {', '.join(found.unread)}"
        )
    warn_of_yanked(lock.name, found.yanked)
    if lock.untrusted:
        say(f"{lock.name}: warning: {USES}")


def project_json(found: LockedProject) -> str:
    """The object that `project lock --json` prints."""
    lock = found.lock
    values: dict[str, Any] = {
        "name": lock.name,
        "parent": lock.parent,
        "source": found.source,
        "extras": list(lock.extras),
        "groups": list(lock.groups),
        "as_of": lock.as_of,
        "moves": [codec.plain(move) for move in found.moves],
        "may_lack": list(lock.may_lack),
        "unchecked": list(found.unread),
        **({"apt": [codec.plain(package) for package in lock.apt.packages]} if lock.apt else {}),
        "behind": [codec.plain(one) for one in found.behind],
        "origins": [codec.plain(origin) for origin in lock.origins],
        "notes": list(found.notes),
    }
    return json.dumps(values, indent=2)


def _packages(apt: LockedApt) -> str:
    """`OS packages: git-lfs 3.3.0-1+deb12u1, and 2 that they need (8.1 MB)`."""
    names = {text.partition("=")[0] for text in apt.requested}
    named = [f"{package.name} {package.version}" for package in apt.packages if package.name in names]
    there = sorted(names - {package.name for package in apt.packages})
    parts = [
        *([", ".join(named)] if named else []),
        *([f"{len(apt.debs) - len(named)} that they need"] if len(apt.debs) > len(named) else []),
        *([f"in the image already: {', '.join(there)}"] if there else []),
    ]
    return f"OS packages: {', and '.join(parts)} ({apt.size / 1e6:.1f} MB)"


def _origin(origin: Origin) -> str:
    if origin.built is None:
        return origin.path or redact(origin.url)
    kept = "" if origin.built.reproducible else "; warning: not reproducible: a second build gave other bytes"
    if origin.git is None:
        return f"built from {origin.built.sdist}{kept}"
    named = f" ({origin.git.revision})" if origin.git.revision else ""
    return f"built from commit {origin.git.commit}{named} of {redact(origin.git.url)}{kept}"


def _row(move: Move) -> tuple[str, str, str, str]:
    after = f"{move.after or _NEW} (fixed)" if move.ignored else move.after
    return move.name, move.before or _NEW, after, move.why


def _warning(one: Behind) -> str:
    head = f"warning: {one.name} {one.version} is far older than its newest release {one.newest}"
    return f"{head}: {one.why}"
