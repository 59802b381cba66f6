"""A repository with small locks, for tests of workflows. Each job gets a clone; slow programs are stubs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.checkouts import GIT, commit, git, put
from tests.planned import locked, wheel
from tests.workflows import GITHUB, Ran, Runner, Values, loaded
from torchkiln.base import artefact
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
REGISTRY = "registry.example/team/pytorch-cuda"
IMAGE = f"{REGISTRY}@sha256:{'e' * 64}"
SCRIPT = "python train.py --steps 10\npython check.py"
_COPIED = (".github", "examples", "tools/ci", "tools/release.py", "matrix.yaml", "Makefile", ".gitignore")
_TOOLS = ("docker", "gh", "make", "sudo", "chown", "torchkiln")
_PROGRAM = '#!/bin/sh\nexec {python} -m tests.servers.ci_tools {name} "$@"\n'

_BUILD = 'import sys\nfrom tests.servers.ci_tools import main\nsys.exit(main("torchkiln", *sys.argv[1:]))\n'


def upgraded(cell: LockedCell) -> LockedCell:
    """*cell* with another version of tqdm, another file of the same jupyterlab, and another base."""
    tqdm = wheel("tqdm", "9.9", megabytes=1)
    wheels = [tqdm if locked.name == "tqdm" else locked for locked in cell.wheels]
    wheels[0] = replace(wheels[0], sha256="5" * 64)
    return replace(cell, wheels=tuple(wheels), base=replace(cell.base, digest=Digest("sha256:" + "c" * 64)))


def upgrade(images: Path) -> None:
    """Change the scene's locks as `lock --upgrade --upgrade-base` would."""
    cell = upgraded(locked())
    put(images, cell)
    artefact.write_lock(images, cell.base)


def release(checkout: Path) -> None:
    """Change the scene's matrix, facts and locks as `matrix add torch newest --smoke` would."""
    put(checkout / "images", locked("2.6.0"))
    for name in ("matrix.yaml", "facts.yaml"):
        with (checkout / name).open("a") as file:
            file.write("# 2.6.0\n")


@dataclass(kw_only=True)
class Scene:
    """A repository whose last commit adds the lock of a second image; `calls` has the recorded commands."""

    folder: Path
    origin: Path
    first: str  # commits
    last: str
    clones: int = field(default=0)

    def job(self, file: str, name: str, values: Values, **environ: str) -> list[Ran]:
        """Run the job *name* of a workflow in a new clone, as GitHub does; all jobs share artifacts."""
        return self.runner(**environ).job(file, name, values)

    def runner(self, origin: Path | None = None, /, **environ: str) -> Runner:
        """A new runner with a clone of *origin*, by default of the scene's repository."""
        self.clones += 1
        clone = self.folder / f"clone{self.clones}" / "a checkout"
        git(self.folder, "clone", "--quiet", str(origin or self.origin), str(clone))
        return Runner(
            repositories={"octo/kiln": self.origin},
            clone=clone,
            tools=self.folder / "tools",
            artifacts=self.folder / "artifacts",
            environ={
                **GIT,
                "HOME": str(self.folder),
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(clone.parent),
                "CI_TOOLS_STATE": str(self.folder / "state"),
                **environ,
            },
        )

    def calls(self, *first: str) -> list[list[str]]:
        """The recorded commands that begin with the words *first*, in order, without these words."""
        log = self.folder / "state/log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line[len(first) :] for line in lines if tuple(line[: len(first)]) == first]

    def remember(self, what: str) -> None:
        """Write a file that the stubs look for: `newer`, `released`, `fails` or `tampered`."""
        (self.folder / "state" / what).touch()


def scene(folder: Path) -> Scene:
    """The scene in the empty *folder*."""
    origin = folder / "origin"
    for name in _COPIED:
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, origin / name)
        else:
            shutil.copy(ROOT / name, origin / name)
    for name in (
        *("README.md", "README.zh-CN.md", "docs/page.md", "tests/golden/one", "torchkiln/data/compat.yaml"),
    ):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text("generated\n")
    (origin / "tools/system-packages").write_text("#!/bin/sh\n")  # the real one would run apt
    (origin / "tools/system-packages").chmod(0o755)
    (origin / "build.py").write_text(_BUILD)
    put(origin / "images", locked("2.8.0"))
    artefact.write_lock(origin / "images", locked().base)
    first = commit(origin)
    put(origin / "images", locked())
    last = commit(origin)
    git(origin, "config", "receive.denyCurrentBranch", "ignore")
    for name in ("tools", "state", "artifacts"):
        (folder / name).mkdir()
    for name in _TOOLS:
        program = folder / "tools" / name
        program.write_text(_PROGRAM.format(python=sys.executable, name=name))
        program.chmod(0o755)
    return Scene(folder=folder, origin=origin, first=first, last=last)


def caller(place: Scene) -> Path:
    """A repository of a company, without torchkiln's files."""
    folder = place.folder / "caller"
    if not folder.exists():
        folder.mkdir()
        (folder / "train.py").write_text("loss = 0\n")
        commit(folder)
    return folder


def gate(place: Scene, *, environ: Mapping[str, str] | None = None, **inputs: str) -> list[Ran]:
    """Run the workflow `gate`, called from the other repository; *inputs* replace the default ones."""
    offered = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    merged = {
        **{key: locked.get("default", "") for key, locked in offered.items()},
        "torchkiln": "octo/kiln",
        "ref": place.last,
        "image": IMAGE,
        "script": SCRIPT,
        **inputs,
    }
    runner = place.runner(caller(place), **(environ or {}))
    return runner.job("gate.yml", "gate", {f"inputs.{key}": text for key, text in merged.items()})
