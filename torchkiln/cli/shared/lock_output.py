"""Prints the results of `torchkiln lock`: the tag of each locked cell on stdout, the rest on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.console import progress
from torchkiln.cli.shared.terminal import echo, print_error
from torchkiln.compare.layers import package_changes
from torchkiln.errors import KilnError
from torchkiln.locks.session import LockResult
from torchkiln.matrix.public_record import record_notice
from torchkiln.model.contents import Package
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Reporting
from torchkiln.model.untrusted import USES, is_untrusted

say = partial(terminal.say, of="lock")


class LockOutput:
    def say(self, line: str) -> None:
        say(line)

    @contextmanager
    def reporting(self) -> Iterator[Reporting]:
        with progress(quiet=False) as observer:
            yield Reporting(say=say, observer=observer)

    def locked(self, result: LockResult) -> None:
        tag, locked = result.tag, result.lock
        say(f"{tag}: {_contents(locked)}: {_changes(result)}")
        warn_of_yanked(tag, result.yanked)
        if is_untrusted(locked):
            say(f"{tag}: warning: {USES}")
        if locked.by_record:
            say(f"{tag}: {record_notice(locked.by_record)}")
        echo(tag)

    def failed(self, tag: str, error: KilnError) -> None:
        print_error(f"{tag}: {error.message}", error.hint)


def warn_of_yanked(tag: str, yanked: Iterable[tuple[str, str, str]]) -> None:
    """Print a line for the name, version and reason of each yanked wheel."""
    for name, version, reason in yanked:
        why = f": {reason[:200]}" if reason else ""
        say(f"{tag}: warning: {name} {version} was yanked{why}")


def _contents(locked: LockedCell) -> str:
    total = sum(wheel.size for wheel in locked.wheels)
    unknown = f" and {len(locked.by_record)} of unknown size" if locked.by_record else ""
    contents = f"{len(locked.wheels) - len(locked.by_record)} wheels, {total / 1e9:.2f} GB{unknown}"
    if locked.archives:
        more = sum(archive.size for archive in locked.archives)
        contents += f", {len(locked.archives)} archives, {more / 1e9:.2f} GB"
    return contents


def _changes(result: LockResult) -> str:
    if result.previous is None:
        return "new"
    if result.previous == result.lock:
        return "unchanged"
    moved = [
        f"{change.name} {change.a or '(new)'} → {change.b or '(removed)'}"
        for change in package_changes(_packages(result.previous), _packages(result.lock))
    ]
    moved += ["base"] if result.previous.base.digest != result.lock.base.digest else []
    return "; ".join(moved) or "new facts, same wheels"


def _packages(locked: LockedCell) -> list[Package]:
    """The wheels and the parts of NVIDIA's toolkit; a new base is one word, without its packages."""
    package = partial(Package, place="")
    return [
        *(package(system="python", name=wheel.name, version=wheel.version) for wheel in locked.wheels),
        *(package(system="toolkit", name=part.component, version=part.version) for part in locked.archives),
    ]
