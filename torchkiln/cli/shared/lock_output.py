"""What `torchkiln lock` prints: the tag of each locked cell to stdout, everything else to stderr."""

from __future__ import annotations

import click

from torchkiln.compare.locks import lock_change
from torchkiln.errors import KilnError, printable
from torchkiln.lock.session import LockResult
from torchkiln.matrix.public_record import record_notice
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import USES, is_untrusted


def say(line: str) -> None:
    """One line to stderr."""
    click.echo(f"lock: {line}", err=True)


class Output:
    """The observer of `lock/session.py`."""

    def say(self, line: str) -> None:
        say(line)

    def locked(self, result: LockResult) -> None:
        tag, locked = result.tag, result.lock
        say(f"{tag}: {_named(locked)}: {_changes(result)}")
        for name, version, reason in result.yanked:
            why = f": {printable(reason)[:200]}" if reason else ""
            say(f"{tag}: warning: {name} {version} was yanked{why}")
        if is_untrusted(locked):
            say(f"{tag}: {USES}")
        if locked.by_record:
            say(f"{tag}: {record_notice(locked.by_record)}")
        click.echo(tag)

    def failed(self, tag: str, error: KilnError) -> None:
        say(f"{tag}: {error.message}\n  {error.hint}")


def _named(locked: LockedCell) -> str:
    """What a lock names, in numbers."""
    total = sum(wheel.size for wheel in locked.wheels)
    unknown = f" and {len(locked.by_record)} of unknown size" if locked.by_record else ""
    named = f"{len(locked.wheels) - len(locked.by_record)} wheels, {total / 1e9:.2f} GB{unknown}"
    if locked.archives:
        more = sum(archive.size for archive in locked.archives)
        named += f", {len(locked.archives)} archives, {more / 1e9:.2f} GB"
    return named


def _changes(result: LockResult) -> str:
    """What differs from the lock that was there."""
    if result.previous is None:
        return "new"
    if result.previous == result.lock:
        return "unchanged"
    found = lock_change(result.tag, result.previous, result.lock)
    moved = [
        f"{one.name} {one.a or '(new)'} → {one.b or '(gone)'}" for one in found.packages if one.system != "os"
    ]
    moved += ["base"] if found.base[0] != found.base[1] else []
    return "; ".join(moved) or "new facts, same wheels"
