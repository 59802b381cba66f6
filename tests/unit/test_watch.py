"""The watch of a project's files: what counts as a change, and why no change is missed."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from torchkiln.errors import BuildFailed, KilnError, Stale
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.projects import watch
from torchkiln.projects.build import BuiltProject, ProjectSource
from torchkiln.projects.code import read_code
from torchkiln.projects.watch import INTERVAL, WatchedProject, rebuilds, snapshot

LOCK = "torchkiln.lock.json"
FULL = None  # the image is built without the previous one


@dataclass(frozen=True)
class FakeLock:
    """A fake lock, whose content is one text."""

    text: str
    origins: tuple[Origin, ...] = ()


class Ended(Exception):
    """Raised after the last step of a test."""


@dataclass
class Scene:
    """A watched project in `folder`. Its images are numbers; image 0 exists before the watch begins."""

    folder: Path
    built_from: list[int | None] = field(default_factory=list)  # the image that image 1, 2, … is built from
    reading: Callable[[], object] = lambda: None  # called while the files are read
    building: Callable[[], object] = lambda: None
    settling: Callable[[], object] = lambda: None  # called after a change, before the next poll
    origins: tuple[Origin, ...] = ()  # of the wheels in the lock

    def write(self, name: str, text: str) -> Callable[[], object]:
        return lambda: (self.folder / name).write_text(text)

    def events(self, *steps: Callable[[], object]) -> list[str]:
        """For each image the changed files, or the error. At every third pause, one of *steps* runs."""

        def script() -> Iterator[None]:
            for step in steps:
                step()
                yield from (None, None, None)
            raise Ended

        made, found = script(), list[str]()

        def pause(seconds: float) -> None:
            if seconds >= INTERVAL:
                next(made)
            else:
                self.settling()

        project = WatchedProject(
            folder=self.folder,
            beside=(),
            source=self._read(),
            built=cast(BuiltProject, 0),
            read=self._read,
            build=self._build,
            pause=pause,
        )
        try:
            for event in rebuilds(project):
                found.append(
                    event.message if isinstance(event, KilnError) else " ".join(event.changed) or "same"
                )
        except Ended:
            return found
        raise AssertionError("the watch ended by itself")

    def _read(self) -> ProjectSource:
        lock = FakeLock((self.folder / LOCK).read_text(), self.origins)
        code = read_code(self.folder)
        self.reading()
        return ProjectSource(
            folder=self.folder,
            cell=cast(Any, "cell"),
            lock=cast(ProjectLock, lock),
            needs=cast(Any, None),
            code=code,
        )

    def _build(self, _: ProjectSource, before: BuiltProject | None) -> BuiltProject:
        self.building()
        self.built_from.append(cast("int | None", before))
        return cast(BuiltProject, len(self.built_from))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    (tmp_path / LOCK).write_text("{}")
    (tmp_path / "train.py").write_text("one")
    return Scene(tmp_path)


def once(step: Callable[[], object]) -> Callable[[], object]:
    """A function that calls *step* at its first call, and then does nothing."""
    steps = [step]
    return lambda: steps.pop()() if steps else None


def nothing() -> None:
    """A step without a change."""


def test_each_change_gives_one_image_from_the_previous_one(scene: Scene) -> None:
    events = scene.events(
        scene.write("train.py", "two"), nothing, scene.write("new.py", ""), (scene.folder / "new.py").unlink
    )

    assert events == ["train.py", "+new.py", "-new.py"]
    assert scene.built_from == [0, 1, 2]


def test_several_files_at_once_give_one_image(scene: Scene) -> None:
    def several() -> None:
        scene.write("train.py", "two")()
        scene.write("a.py", "")()

    assert scene.events(several) == ["+a.py train.py"]


def test_files_are_read_when_they_have_settled(scene: Scene) -> None:
    def change() -> None:
        texts = iter("3456")
        scene.settling = lambda: scene.write("train.py", next(texts, "6"))()
        scene.write("train.py", "2")()

    assert scene.events(change) == ["train.py"]
    assert (scene.folder / "train.py").read_text() == "6"


def test_files_that_never_settle_are_read(scene: Scene) -> None:
    """For example, a program may constantly write a log into the folder."""
    numbers = itertools.count()
    scene.settling = lambda: scene.write("run.log", f"{next(numbers)}")()

    assert scene.events(scene.write("train.py", "two"))[0] == "+run.log train.py"


def test_files_with_the_same_bytes_give_no_image(scene: Scene) -> None:
    train = scene.folder / "train.py"

    assert scene.events(lambda: os.utime(train, (1, 1)), scene.write("train.py", "one")) == []


def test_a_mode_is_a_change(scene: Scene) -> None:
    assert scene.events(lambda: (scene.folder / "train.py").chmod(0o755)) == ["train.py"]


def test_other_packages_are_built_from_scratch(scene: Scene) -> None:
    assert scene.events(scene.write(LOCK, '{"other": 1}'), scene.write("train.py", "two")) == [
        LOCK,
        "train.py",
    ]
    assert scene.built_from == [FULL, 1]


def test_what_git_ignores_is_no_change(scene: Scene) -> None:
    subprocess.run(["git", "init", "--quiet", scene.folder], check=True)
    (scene.folder / ".gitignore").write_text("*.log\n.gitignore\n")

    assert scene.events(scene.write("run.log", "1"), scene.write("b.py", "")) == ["+b.py"]


def test_files_of_the_lock_are_watched_even_if_git_ignores_them(scene: Scene) -> None:
    subprocess.run(["git", "init", "--quiet", scene.folder], check=True)
    (scene.folder / ".gitignore").write_text(f"{LOCK}\n")

    assert scene.events(nothing, scene.write(LOCK, "[]")) == ["same"]
    assert scene.built_from == [FULL]


@pytest.mark.parametrize("later", [False, True])
def test_locked_wheels_are_watched_wherever_they_are(scene: Scene, later: bool) -> None:
    """They may be in `dist` or be ignored by git: a changed wheel makes the lock stale."""
    path = "dist/own-1-py3-none-any.whl"
    (scene.folder / "dist").mkdir()
    scene.write(path, "one")()

    def lock() -> None:
        scene.origins = (Origin(name="own", path=path),)
        scene.write(LOCK, "[]")()

    def change() -> None:
        scene.reading = stale
        scene.write(path, "two")()

    def stale() -> None:
        raise Stale(f"{path} has changed")

    if later:
        assert scene.events(lock, nothing, change, nothing) == [LOCK, f"{path} has changed"]
    else:
        lock()
        assert scene.events(nothing, change, nothing) == [f"{path} has changed"]


def test_the_layout_in_the_folder_is_not_watched(scene: Scene) -> None:
    layout = scene.folder / "out"
    layout.mkdir()
    (layout / "oci-layout").write_text("{}")
    before = snapshot(scene.folder)
    (layout / "index.json").write_text("{}")

    assert snapshot(scene.folder) == before


def test_a_fault_is_reported_once_for_each_change(scene: Scene) -> None:
    """A change may leave the fault. After the correction, an image is built even for unchanged code."""
    key = scene.folder / ".env"
    events = scene.events(
        scene.write(".env", "A=1"),
        nothing,
        scene.write("b.py", ""),
        (scene.folder / "b.py").unlink,
        key.unlink,
    )

    fault = f"{scene.folder}/.env: looks like a secret"
    assert events == [fault, fault, fault, "same"]
    assert scene.built_from == [0]


def test_after_a_failed_build_nothing_is_assumed(scene: Scene) -> None:
    def fail() -> None:
        raise BuildFailed("no space left")

    scene.building = once(fail)

    train = scene.folder / "train.py"
    events = scene.events(scene.write("train.py", "two"), nothing, lambda: os.utime(train, (1, 1)))
    assert events == ["no space left", "train.py"]
    assert scene.built_from == [FULL]


def test_an_error_while_files_change_is_not_reported(scene: Scene) -> None:
    """For example, git may remove a file after it was listed and before it is read."""

    def half_written() -> None:
        scene.write("other.py", "")()
        raise FileNotFoundError(2, "No such file or directory", "gone.py")

    def then(step: Callable[[], object]) -> Callable[[], object]:
        def change() -> None:
            scene.reading = once(step)
            scene.write("train.py", "two")()

        return change

    assert scene.events(then(half_written)) == ["+other.py train.py"]


def test_an_attempt_whose_error_is_not_reported_is_repeated(scene: Scene) -> None:
    """It is repeated even if no file changes afterwards."""

    def fail() -> None:
        os.utime(scene.folder / "train.py", (1, 1))
        raise BuildFailed("train.py changed")

    scene.building = once(fail)

    assert scene.events(scene.write("train.py", "two")) == ["train.py"]


def test_an_error_of_the_system_is_reported(scene: Scene) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "secret.py")

    def change() -> None:
        scene.reading = fail
        scene.write("train.py", "two")()

    assert scene.events(change) == ["secret.py: Permission denied"]


def test_the_folder_can_come_back(scene: Scene) -> None:
    elsewhere = scene.folder.with_name("elsewhere")
    (scene.folder / LOCK).rename(scene.folder.parent / LOCK)

    def read_lock() -> ProjectSource:
        return ProjectSource(
            folder=scene.folder,
            cell=cast(Any, 1),
            lock=cast(ProjectLock, FakeLock("")),
            needs=cast(Any, None),
            code=read_code(scene.folder),
        )

    scene._read = read_lock  # type: ignore[method-assign]
    events = scene.events(
        lambda: scene.folder.rename(elsewhere), nothing, lambda: elsewhere.rename(scene.folder)
    )

    assert events == [f"{scene.folder}: no such directory", "same"]


@pytest.mark.parametrize("when", ["reading", "building"])
def test_a_change_during_the_work_gives_another_image(scene: Scene, when: str) -> None:
    def change() -> None:
        setattr(scene, when, once(scene.write("train.py", "three")))
        scene.write("train.py", "two")()

    assert scene.events(change) == ["train.py", "train.py"]


def test_a_change_that_the_file_system_does_not_show_is_found(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two changes within the granularity of file times, the snapshot shows only the first."""
    visible = [{"": (0,)}]
    monkeypatch.setattr(watch, "snapshot", lambda *_: visible[-1])

    def change() -> None:
        scene.building = once(scene.write("train.py", "three"))
        scene.write("train.py", "two")()
        visible.append({"": (1,)})

    assert scene.events(nothing, change) == ["train.py", "train.py"]
