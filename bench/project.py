"""Benchmark a change of a project's code: image in the layout, then in a registry; against Docker's BuildKit.

The image of the cell is in the registry from the start, and all packages are in the caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.meters import measure
from bench.results import Figure, Outcome, Sample, per_round
from bench.sides import Contender, Say, alternate
from bench.subject import KILN, Subject
from tests.engine.fixture import reach
from tests.engine.registry import RunningRegistry, docker_registry
from tests.engine.root import NoEngine
from torchkiln.lock.lock import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.project import ProjectLock
from torchkiln.project.file import save_project
from torchkiln.project.inputs import inputs_digest
from torchkiln.project.ready import needs_of

_OURS, _DOCKER = "ours, build --project and push", "docker buildx build and docker push"
_NAME = "bench-project"
_TRAIN = "import torch\n\nprint(torch.__version__, {number})\n"
# A usual Dockerfile on the same image: packages before the code, with pip's cache in a mount.
_DOCKERFILE = """\
FROM {parent}
WORKDIR /app
COPY requirements.txt .
{packages}COPY . .
"""
_PACKAGES = """\
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \\
    --mount=type=cache,target=/root/.cache pip install -r requirements.txt
"""


@dataclass
class ProjectScene:
    """A project's folder, a registry with the image of the cell, and a layout."""

    subject: Subject
    registry: RunningRegistry
    folder: Path
    cache: Path
    count: int = field(default=0)

    @property
    def project(self) -> Path:
        return self.folder / _NAME

    def change(self) -> None:
        """Write other code."""
        self.count += 1
        (self.project / "train.py").write_text(_TRAIN.format(number=self.count))

    def ours(self) -> Sample:
        """Change the code, then build and push. Bytes: what the registry has more afterwards."""
        self.change()
        cell, layout = self.subject.locked.resolution.cell, ("--output", str(self.folder / "layout"))
        chosen = ("--torch", cell.torch, "--cuda", cell.cuda, "--images", str(self.subject.images))
        build = [*KILN, "build", "--project", str(self.project), *chosen, *layout, "--quiet"]
        target = ("--to", f"{self.registry.host}/team/ours", "--tag", "main")
        push = [*KILN, "push", _NAME, *layout, *target, "--quiet"]
        return self._measured([build, push], {"TORCHKILN_CACHE": str(self.cache)})

    def docker(self, engine: Mapping[str, str]) -> Sample:
        """The same with the engine, from an image that it has."""
        self.change()
        name = f"{self.registry.host}/team/docker:main"
        secrets = [
            word for each in ("pip", "ca") for word in ("--secret", f"id={each},src={self.folder}/{each}")
        ]
        file = ("--file", str(self.folder / "Dockerfile"))
        build = ["docker", "buildx", "build", "--quiet", "--load", "--network", "host", *secrets, *file]
        build += ["--tag", name, str(self.project)]
        return self._measured([build, ["docker", "push", "--quiet", name]], engine)

    def push_parent(self) -> None:
        """Push the image of the cell."""
        parent, layout = tag_of(self.subject.locked.resolution), ("--output", str(self.folder / "layout"))
        push = [*KILN, "push", parent, *layout, "--to", f"{self.registry.host}/team/ours", "--quiet"]
        self._measured([push], {"TORCHKILN_CACHE": str(self.cache)})

    def _measured(self, commands: list[list[str]], more: Mapping[str, str]) -> Sample:
        environ, before = {**self.subject.environ, **more}, self._stored()
        build, *push = (measure(argv, env=environ, cwd=self.subject.scratch)[0] for argv in commands)
        legs = [("build", build.wall), *(("push", sample.wall) for sample in push)]
        total = sum(push[1:], start=build + push[0]) if push else build
        return replace(total, stages=(), legs=tuple(legs), bytes=self._stored() - before)

    def _stored(self) -> int:
        blobs = (self.registry.folder / "data/docker/registry/v2/blobs").rglob("data")
        return sum(path.stat().st_size for path in blobs)


def project(subject: Subject, rounds: int, say: Say) -> Outcome:
    """A changed line, built and pushed."""
    with _scene(subject) as scene:
        contenders = [
            Contender(
                name=_OURS,
                what="two commands: `build --project`, `push`; the lock is checked",
                run=scene.ours,
            )
        ]
        left_out: tuple[str, ...] = ()
        try:
            engine = _engine(scene)
        except NoEngine as error:
            left_out = (f"{_DOCKER}: {error}",)
        else:
            contenders.append(
                Contender(
                    name=_DOCKER,
                    what="a Dockerfile FROM the same image, packages before the code, pip's cache in a mount",
                    run=lambda: scene.docker(engine),
                )
            )
            scene.docker(engine)
        found = alternate(contenders, rounds, say)
    figures = [
        Figure(
            what=f"project: {_OURS}",
            unit="s",
            values=tuple(sample.wall for sample in found[_OURS].samples),
            target=1.0,
        )
    ]
    if _DOCKER in found:
        ratio = per_round(found[_OURS].samples, found[_DOCKER].samples)
        figures.append(Figure(what=f"project: {_OURS} / {_DOCKER}", unit="×", values=ratio))
    return Outcome(
        name="project",
        title="A line of a project's code changed: image built and pushed",
        state="the cell's image in a registry on this machine, the project's packages in the caches",
        sides=tuple(found.values()),
        figures=tuple(figures),
        left_out=left_out,
        notes=("Bytes: what the registry stores for the change.",),
    )


def _engine(scene: ProjectScene) -> Mapping[str, str]:
    """An engine with the image of the cell, under the name in the Dockerfile."""
    from bench.engine_pair import pip_secrets

    engine = reach(os.getpid())
    parent = f"{scene.registry.host}/team/ours:unproven-{tag_of(scene.subject.locked.resolution)}"
    subprocess.run(
        ["docker", "pull", "--quiet", parent], env=dict(engine), stdout=subprocess.DEVNULL, check=True
    )
    for name, content in pip_secrets(scene.subject).items():
        (scene.folder / name).write_bytes(content)
    packages = "" if scene.subject.generated else _PACKAGES  # the generated pip does not run
    (scene.folder / "Dockerfile").write_text(_DOCKERFILE.format(parent=parent, packages=packages))
    return engine


def _lock_nothing(subject: Subject, folder: Path) -> None:
    """Write the lock of a project that needs only packages of the image: uv cannot use generated wheels."""
    needs, tag = needs_of(folder, subject.locked, subject.store), tag_of(subject.locked.resolution)
    lock = ProjectLock(
        name=_NAME,
        parent=tag,
        parent_lock=lock_digest(subject.locked),
        as_of=subject.locked.as_of,
        inputs=inputs_digest(needs, subject.locked),
        requirements=tuple(asked.text for asked in needs.requirements),
        wheels=(),
    )
    save_project(folder, lock)


@contextmanager
def _scene(subject: Subject) -> Iterator[ProjectScene]:
    folder = Path(tempfile.mkdtemp(prefix="project-", dir=subject.scratch))
    (folder / _NAME).mkdir()
    (folder / _NAME / "requirements.txt").write_text("tqdm\n" if subject.generated else "einops\n")
    if subject.generated:
        _lock_nothing(subject, folder / _NAME)
    try:
        with docker_registry(folder / "its") as registry:
            cache = subject.cache("project", wheels=True, bytecode=True)
            scene = ProjectScene(subject=subject, registry=registry, folder=folder, cache=cache)
            build = [*subject.command(), "--output", str(folder / "layout")]
            measure(build, env={**subject.environ, "TORCHKILN_CACHE": str(cache)}, cwd=subject.scratch)
            scene.push_parent()
            scene.ours()  # makes the lock, and the layers of the packages
            os.sync()
            yield scene
    finally:
        shutil.rmtree(folder)
