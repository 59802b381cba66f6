"""Prints the results of `torchkiln lock`: the tag of each locked cell on stdout, the rest on stderr."""

from __future__ import annotations

import click

from torchkiln.compare.locks import lock_change
from torchkiln.errors import KilnError, printable
from torchkiln.lock.session import LockResult
from torchkiln.matrix.public_record import record_notice
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import USES, is_untrusted


def say(line: str) -> None:
    """Print one line on stderr."""
    click.echo(f"lock: {line}", err=True)


class LockOutput:
    """The observer of the lock session."""

    def say(self, line: str) -> None:
        say(line)

    def locked(self, result: LockResult) -> None:
        tag, locked = result.tag, result.lock
        say(f"{tag}: {_contents(locked)}: {_changes(result)}")
        for name, version, reason in result.yanked:
            why = f": {printable(reason)[:200]}" if reason else ""
            say(f"{tag}: warning: {name} {version} was yanked{why}")
        if is_untrusted(locked):
            say(f"{tag}: warning: {USES}")
        if locked.by_record:
            say(f"{tag}: {record_notice(locked.by_record)}")
        click.echo(tag)

    def failed(self, tag: str, error: KilnError) -> None:
        say(f"{tag}: {error.message}\n  {error.hint}")


def _contents(locked: LockedCell) -> str:
    """How many files a lock names, and their size."""
    total = sum(wheel.size for wheel in locked.wheels)
    unknown = f" and {len(locked.by_record)} of unknown size" if locked.by_record else ""
    contents = f"{len(locked.wheels) - len(locked.by_record)} wheels, {total / 1e9:.2f} GB{unknown}"
    if locked.archives:
        more = sum(archive.size for archive in locked.archives)
        contents += f", {len(locked.archives)} archives, {more / 1e9:.2f} GB"
    return contents


def _changes(result: LockResult) -> str:
    """The differences from the previous lock."""
    if result.previous is None:
        return "new"
    if result.previous == result.lock:
        return "unchanged"
    found = lock_change(result.tag, result.previous, result.lock)
    moved = [
        f"{change.name} {change.a or '(new)'} → {change.b or '(removed)'}"
        for change in found.packages
        if change.system != "os"
    ]
    moved += ["base"] if found.base[0] != found.base[1] else []
    return "; ".join(moved) or "new facts, same wheels"
