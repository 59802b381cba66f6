"""A checkout for workflows on trial: small locks, a clone for each job, stand-ins for what costs hours."""

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
_COPIED = (".github", "tools/ci", "tools/release.py", "matrix.yaml", "Makefile", ".gitignore")
_TOOLS = ("docker", "gh", "make", "sudo", "chown", "torchkiln")
_PROGRAM = '#!/bin/sh\nexec {python} -m tests.standin.ci_tools {name} "$@"\n'

_BUILD = 'import sys\nfrom tests.standin.ci_tools import main\nsys.exit(main("torchkiln", *sys.argv[1:]))\n'


def upgraded(cell: LockedCell) -> LockedCell:
    """The same with another tqdm, on another base."""
    wheels = (*(one for one in cell.wheels if one.name != "tqdm"), wheel("tqdm", "9.9", megabytes=1))
    return replace(cell, wheels=wheels, base=replace(cell.base, digest=Digest("sha256:" + "c" * 64)))


def upgrade(images: Path) -> None:
    """What `lock --upgrade --upgrade-base` would do to the scene's locks."""
    cell = upgraded(locked())
    put(images, cell)
    artefact.write_lock(images, cell.base)


@dataclass(kw_only=True)
class Scene:
    """An origin with two images' locks, of which the last commit brought one; and what was asked in it."""

    folder: Path
    origin: Path
    first: str  # commits
    last: str
    clones: int = field(default=0)

    def job(self, file: str, name: str, values: Values, **environ: str) -> list[Ran]:
        """Run a job as a runner does, in a clone of its own; artifacts are those of all jobs."""
        return self.runner(**environ).job(file, name, values)

    def runner(self, origin: Path | None = None, /, **environ: str) -> Runner:
        """A fresh runner with a clone of *origin*, or of the scene's."""
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

    def asked(self, *first: str) -> list[list[str]]:
        """What programs were asked, in order, that begins with the words *first*; these are left out."""
        log = self.folder / "state/log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line[len(first) :] for line in lines if tuple(line[: len(first)]) == first]

    def remember(self, what: str) -> None:
        """A fact for the stand-ins: `newer`, `fails`, `tampered`."""
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
    for name in ("README.md", "docs/page.md", "tests/golden/one"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text("generated\n")
    (origin / "tools/system-packages").write_text("#!/bin/sh\n")  # the real one would ask apt
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
    """Somebody else's repository, which has nothing of ours."""
    folder = place.folder / "caller"
    if not folder.exists():
        folder.mkdir()
        (folder / "train.py").write_text("loss = 0\n")
        commit(folder)
    return folder


def gate(place: Scene, *, environ: Mapping[str, str] | None = None, **inputs: str) -> list[Ran]:
    """The workflow `gate`, called from there; *inputs* beside those that it cannot do without."""
    offered = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    given = {
        **{key: one.get("default", "") for key, one in offered.items()},
        "torchkiln": "octo/kiln",
        "ref": place.last,
        "image": IMAGE,
        "script": SCRIPT,
        **inputs,
    }
    runner = place.runner(caller(place), **(environ or {}))
    return runner.job("gate.yml", "gate", {f"inputs.{key}": text for key, text in given.items()})
