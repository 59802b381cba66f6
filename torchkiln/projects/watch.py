"""Rebuilds the image of a project each time its files change, as `build --watch` does.

Files are polled: the kernel's notifications do not say what git ignores, and network file systems have none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.base.remake import APT_EFFECTS
from torchkiln.errors import BuildFailed, KilnError
from torchkiln.model.plan import OverlayFile, OverlayLink
from torchkiln.projects import pylock
from torchkiln.projects.build import BuiltProject, ProjectSource
from torchkiln.projects.code import ProjectCode, code_paths
from torchkiln.projects.file import FILE
from torchkiln.projects.pyproject import FILE as PYPROJECT
from torchkiln.projects.read import REQUIREMENTS
from torchkiln.projects.settings import FILE as SETTINGS

INTERVAL = 0.25  # seconds between two polls
SETTLE = 0.05  # seconds between polls after a change, until no file changes: editors and git write several
_MOST_POLLS = 40  # maximum number of these polls; then the files are read in any case
_IDLE, _LONGEST = 10, 2.0  # after a slow poll, the pause is 10 times as long, but at most 2 seconds
#: By path: values of lstat. At least one changes if the bytes, the type or the mode of the file change.
Snapshot = Mapping[str, tuple[int, ...]]

# These files determine the lock and the settings; they are included even if git ignores them.
_ALSO = (pylock.FILE, pylock.UV_LOCK, PYPROJECT, REQUIREMENTS, FILE, SETTINGS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebuilt:
    """An image that was built because files have changed."""

    built: BuiltProject
    source: ProjectSource
    changed: tuple[str, ...]  # paths: "train.py", "+new.py", "-gone.py"
    began: float  # `time.monotonic()` when the change was noticed


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedProject:
    """A project that was built, and the functions that read it and build it again.

    `read`: reads its files and locks.
    `build`: builds its image; it gets the previous image if only code has changed, else None.
    `pause`: waits for a number of seconds.
    """

    folder: Path
    beside: tuple[Path, ...]  # files in other folders that are watched, too
    source: ProjectSource
    built: BuiltProject
    read: Callable[[], ProjectSource]
    build: Callable[[ProjectSource, BuiltProject | None], BuiltProject]
    pause: Callable[[float], None] = time.sleep


def rebuilds(project: WatchedProject) -> Iterator[Rebuilt | KilnError]:
    """Build an image after each change of *project*; yield it, or the error. Never ends.

    After an error, an image is built even if a change has restored the files of the last image.
    """
    source, tried = project.source, project.source  # of the last image, and of the last attempt
    reported, files = "", _Files(project, _wheels_of(project.source))
    before: BuiltProject | None = project.built
    while True:
        is_change = files.wait()
        try:
            found = project.read()
            files.wheels = _wheels_of(found)
            if _is_same(found, tried) and not (reported and is_change):
                continue
            tried = found
            of_same_packages = (found.lock, found.cell) == (source.lock, source.cell)
            last, before = before if of_same_packages else None, None  # until the build succeeds
            before = project.build(found, last)
        except (KilnError, OSError) as error:
            fault = _as_error(error)
            if is_change and not files.retried and files.are_changing():
                files.retried = True  # the files may have been read in the middle of a change
                tried = source
            elif is_change or fault.message != reported:
                reported = fault.message
                yield fault
        else:
            changed, source, reported = changed_paths(source.code, found.code), found, ""
            yield Rebuilt(built=before, source=source, changed=changed, began=files.noticed)


@dataclass
class _Files:
    """The files of a project, which are polled."""

    project: WatchedProject
    wheels: tuple[Path, ...]  # the wheel files that the project's lock names; git may ignore them
    noticed: float = 0.0  # when the last change was noticed
    retried: bool = False  # an error was not reported, because files were changing
    _seen: Snapshot | None = field(default=None)
    _sure: bool = False

    def wait(self) -> bool:
        """Wait until the files have changed (True), or until they should be compared once more (False).

        They are compared once more after each change, because a poll can miss another change: while the files
        are read, or within the resolution of the file system's timestamps.
        """
        cost = 0.0
        while True:
            self.project.pause(max(INTERVAL, min(_IDLE * cost, _LONGEST)))
            self.noticed = time.monotonic()
            now = self._poll()
            cost = time.monotonic() - self.noticed
            if now != self._seen:
                self._seen, self._sure = self._settled(now), False
                return True
            if not self._sure:
                self._sure, self.retried = True, False
                return False

    def are_changing(self) -> bool:
        """Whether the files have changed since `wait` returned."""
        return self._poll() != self._seen

    def _poll(self) -> Snapshot:
        return snapshot(self.project.folder, (*self.project.beside, *self.wheels))

    def _settled(self, now: Snapshot) -> Snapshot:
        for _ in range(_MOST_POLLS):
            self.project.pause(SETTLE)
            later = self._poll()
            if later == now:
                break
            now = later
        return now


def _wheels_of(source: ProjectSource) -> tuple[Path, ...]:
    """The files of the wheels that are locked by path."""
    return tuple(source.folder / origin.path for origin in source.lock.origins if origin.path)


def _is_same(one: ProjectSource, other: ProjectSource) -> bool:
    """Whether both give the same image."""
    if (one.cell, one.lock, one.settings) != (other.cell, other.lock, other.settings):
        return False
    return (one.code.files, one.code.links) == (other.code.files, other.code.links)


def _as_error(error: KilnError | OSError) -> KilnError:
    if isinstance(error, KilnError):
        return error
    return BuildFailed(f"{error.filename or 'the project'}: {error.strerror or error}")


def snapshot(folder: Path, beside: Iterable[Path] = ()) -> Snapshot:
    """The lstat values of the code in *folder*, of its locks and settings, and of the files *beside*.

    Empty if the folder cannot be listed; `read_code` says why.
    """
    try:
        names = {*code_paths(folder, (APT_EFFECTS,)), *_ALSO}
    except (KilnError, OSError):
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for path in (*(os.path.join(folder, name) for name in names), *map(str, beside)):
        try:
            own = os.lstat(path)
        except OSError:
            continue
        # The time of change of the inode changes even if the modification time is set back.
        found[path] = (own.st_mode, own.st_size, own.st_mtime_ns, own.st_ctime_ns, own.st_ino)
    return found


def changed_paths(before: ProjectCode, after: ProjectCode) -> tuple[str, ...]:
    """The paths that differ, sorted; `+` marks a new path, `-` a removed one."""
    old, new = _by_path(before), _by_path(after)
    paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return tuple(path if path in old and path in new else f"{'+-'[path in old]}{path}" for path in paths)


def _by_path(code: ProjectCode) -> dict[str, OverlayFile | OverlayLink]:
    entries: tuple[OverlayFile | OverlayLink, ...] = (*code.files, *code.links)
    return {entry.path: entry for entry in entries}
