"""Benchmark changes of a project until its image is in a layout, and in a registry; against Docker's
BuildKit.

A line of code is changed (`project`), or a small package is added to the requirements (`package`).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.project_scene import ProjectScene, project_scene
from bench.results import Figure, Outcome, Sample, per_round
from bench.sides import Contender, Say, alternate
from bench.subject import KILN, Subject
from tests.engine.root import NoEngine

_DOCKER = "docker buildx build and docker push"
# Pure-Python packages without dependencies; each round adds another of them.
_SMALL = (
    *("humanize", "xmltodict", "toolz", "natsort", "unidecode", "inflection", "parse", "boltons", "pyfiglet"),
    *("sortedcontainers", "cachetools", "colorama"),
)
Change = Callable[[ProjectScene], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """The change in each round, and the text of its rows. `changes` gives the changes of one side, by
    round."""

    name: str
    title: str
    ours: str
    what: str
    state: str
    lock: bool
    target: float  # seconds
    changes: Callable[[], Iterator[Change]]
    rounds: int | None = None


def project(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure a changed line of code, built and pushed."""

    def changes() -> Iterator[Change]:
        while True:
            yield ProjectScene.change

    row = _Row(
        name="project",
        title="A line of a project's code changed: image built and pushed",
        ours="ours, project push",
        what="one command; the lock is checked",
        state="the cell's image in a registry on this machine, the project's packages in the caches",
        lock=False,
        target=1.0,
        changes=changes,
    )
    with project_scene(subject) as scene:
        return _outcome(row, scene, rounds, say)


def package(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure a small package that is added to the requirements: locked, built and pushed."""
    present = {wheel.name for wheel in subject.locked.wheels}
    new = [name for name in _SMALL if name not in present]

    def changes() -> Iterator[Change]:
        for count in range(1, len(new) + 1):
            yield lambda scene, some=new[:count]: scene.require(some)  # type: ignore[misc]

    row = _Row(
        name="package",
        title="A small package added to a project: locked, image built and pushed",
        ours="ours, project lock and project push",
        what="two commands; the package's wheel is downloaded",
        state="the cell's image in a registry on this machine, the project's other packages in the caches;"
        " the page of the new package was requested from the index before",
        lock=True,
        target=5.0,
        changes=changes,
        rounds=len(new),
    )
    if subject.generated:
        left_out = (f"{row.title}: uv cannot use generated wheels",)
        return Outcome(name=row.name, title=row.title, state=row.state, left_out=left_out)
    with project_scene(subject) as scene:
        with tempfile.TemporaryDirectory(dir=subject.scratch) as folder:
            options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "--dest")
            asked = [KILN[0], "-m", "pip", "download", *options, folder, *new[:rounds]]
            subprocess.run(asked, env=dict(subject.environ), check=True)
        return _outcome(row, scene, rounds, say)


def _outcome(row: _Row, scene: ProjectScene, rounds: int, say: Say) -> Outcome:
    mine, others = row.changes(), row.changes()

    def ours() -> Sample:
        next(mine)(scene)
        return scene.ours(lock=row.lock)

    contenders = [Contender(name=row.ours, what=row.what, run=ours, rounds=row.rounds)]
    left_out: tuple[str, ...] = ()
    try:
        engine = scene.engine()
    except NoEngine as error:
        left_out = (f"{_DOCKER}: {error}",)
    else:

        def docker() -> Sample:
            next(others)(scene)
            return scene.docker(engine)

        what = "a Dockerfile FROM the same image, packages before the code, pip's cache in a mount"
        contenders.append(Contender(name=_DOCKER, what=what, run=docker, rounds=row.rounds))
        scene.docker(engine)
    found = alternate(contenders, rounds, say)
    walls = tuple(sample.wall for sample in found[row.ours].samples)
    figures = [Figure(what=f"{row.name}: {row.ours}", unit="s", values=walls, target=row.target)]
    if _DOCKER in found:
        ratio = per_round(found[row.ours].samples, found[_DOCKER].samples)
        figures.append(Figure(what=f"{row.name}: {row.ours} / {_DOCKER}", unit="×", values=ratio))
    return Outcome(
        name=row.name,
        title=row.title,
        state=row.state,
        sides=tuple(found.values()),
        figures=tuple(figures),
        left_out=left_out,
        notes=("Bytes: what the registry stores for the change.",),
    )
