"""A project for benchmarks: its folder, a registry with the cell's image, the commands that build and push.

The image of the cell is in the registry from the start, and all packages are in the caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.engine_pair import pip_secrets
from bench.meters import measure
from bench.results import Sample
from bench.subject import KILN, Subject
from tests.engine.fixture import reach
from tests.engine.registry import RunningRegistry, docker_registry
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.project import ProjectLock
from torchkiln.projects.file import save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import needs_of

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
Command = tuple[str, Sequence[str]]  # name of the step, and words of the command


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
        """Change a line of the project's code."""
        self.count += 1
        (self.project / "train.py").write_text(_TRAIN.format(number=self.count))

    def require(self, packages: Sequence[str]) -> None:
        """Write the requirements: a package that the image does not have, and *packages*."""
        first = "tqdm" if self.subject.generated else "einops"
        (self.project / "requirements.txt").write_text("".join(f"{one}\n" for one in (first, *packages)))

    def ours(self, *, lock: bool) -> Sample:
        """Build and push with torchkiln; with *lock*, lock first. Bytes: those added to the registry."""
        cell, layout = self.subject.locked.resolution.cell, ("--output", str(self.folder / "layout"))
        chosen = ("--torch", cell.torch, "--cuda", cell.cuda, "--images", str(self.subject.images))
        target = ("--to", f"{self.registry.host}/team/ours", "--tag", "main")
        locking: list[Command] = [("lock", self._kiln("lock", *chosen))] if lock else []
        build = ("build", self._kiln("push", *chosen, *layout, *target, "--no-smoke", "--quiet"))
        return self._measured([*locking, build], {"TORCHKILN_CACHE": str(self.cache)})

    def _kiln(self, command: str, *options: str) -> list[str]:
        return [*KILN, "project", command, str(self.project), *options]

    def docker(self, engine: Mapping[str, str]) -> Sample:
        """Build and push with the engine, on an image that the engine has."""
        name = f"{self.registry.host}/team/docker:main"
        secrets = [
            word for each in ("pip", "ca") for word in ("--secret", f"id={each},src={self.folder}/{each}")
        ]
        file = ("--file", str(self.folder / "Dockerfile"))
        build = ["docker", "buildx", "build", "--quiet", "--load", "--network", "host", *secrets, *file]
        build += ["--tag", name, str(self.project)]
        return self._measured([("build", build), ("push", ["docker", "push", "--quiet", name])], engine)

    def push_parent(self) -> None:
        """Push the image of the cell."""
        parent, layout = tag_of(self.subject.locked.resolution), ("--output", str(self.folder / "layout"))
        push = [*KILN, "push", parent, *layout, "--to", f"{self.registry.host}/team/ours", "--quiet"]
        self._measured([("push", push)], {"TORCHKILN_CACHE": str(self.cache)})

    def engine(self) -> Mapping[str, str]:
        """An engine with the image of the cell, under the name in the Dockerfile; the Dockerfile is written,
        too."""
        engine = reach(os.getpid())
        parent = f"{self.registry.host}/team/ours:unproven-{tag_of(self.subject.locked.resolution)}"
        pull = ["docker", "pull", "--quiet", parent]
        subprocess.run(pull, env=dict(engine), stdout=subprocess.DEVNULL, check=True)
        for name, content in pip_secrets(self.subject).items():
            (self.folder / name).write_bytes(content)
        packages = "" if self.subject.generated else _PACKAGES  # the pip of generated wheels does not run
        (self.folder / "Dockerfile").write_text(_DOCKERFILE.format(parent=parent, packages=packages))
        return engine

    def _measured(self, commands: Sequence[Command], more: Mapping[str, str]) -> Sample:
        environ, before = {**self.subject.environ, **more}, self._stored()
        samples = {step: measure(argv, env=environ, cwd=self.subject.scratch)[0] for step, argv in commands}
        first, *rest = samples.values()
        legs = tuple((step, sample.wall) for step, sample in samples.items())
        return replace(sum(rest, start=first), stages=(), legs=legs, bytes=self._stored() - before)

    def _stored(self) -> int:
        blobs = (self.registry.folder / "data/docker/registry/v2/blobs").rglob("data")
        return sum(path.stat().st_size for path in blobs)


def _lock_nothing(subject: Subject, folder: Path) -> None:
    """Write the lock of a project that needs only packages of the image, because uv cannot use generated
    wheels."""
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
def project_scene(subject: Subject) -> Iterator[ProjectScene]:
    """A project whose image is built and pushed, in a folder that is deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="project-", dir=subject.scratch))
    try:
        with docker_registry(folder / "its") as registry:
            cache = subject.cache("project", wheels=True, bytecode=True)
            scene = ProjectScene(subject=subject, registry=registry, folder=folder, cache=cache)
            scene.project.mkdir()
            scene.require(())
            if subject.generated:
                _lock_nothing(subject, scene.project)
            build = [*subject.command(), "--output", str(folder / "layout")]
            measure(build, env={**subject.environ, "TORCHKILN_CACHE": str(cache)}, cwd=subject.scratch)
            scene.push_parent()
            scene.change()
            scene.ours(lock=False)  # creates the lock, and the layers of the packages
            os.sync()
            yield scene
    finally:
        shutil.rmtree(folder)
