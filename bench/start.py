"""Benchmark the start of an image on this host: unpacked, and mounted as EROFS."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.meters import Failed, measure
from bench.results import Figure, Outcome, Sample, per_round
from bench.sides import Contender, Say, alternate
from bench.subject import KILN, Subject
from tests.engine.root import NoEngine
from tests.erofs_tools import mkfs_in
from torchkiln.matrix.tags import tag_of
from torchkiln.runtimes import erofs_mount
from torchkiln.util.files import tree_size

# A training step on the CPU: with what `import torch` alone does not read.
STEP = """
import torch
model = torch.nn.Linear(64, 64)
loss = model(torch.randn(8, 64)).square().mean()
loss.backward()
torch.optim.AdamW(model.parameters()).step()
"""
_TITLE = "The first training step of an image on this host, without a GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class StartScene:
    """An image in a layout, and a folder for caches."""

    subject: Subject
    folder: Path
    mkfs: Path

    def start(self, name: str, *, mounted: bool, empty: bool) -> Sample:
        """Run a training step in the image; bytes are those that the cache needs for its files.

        :param empty: delete the cache *name* first.
        """
        cache = self.folder / name
        if empty:
            shutil.rmtree(cache, ignore_errors=True)
        path = f"{self.mkfs.parent}:{os.environ['PATH']}" if mounted else os.environ["PATH"]
        argv = [*KILN, "run", "--output", str(self.folder / "layout"), "--gpus", "none"]
        argv += [tag_of(self.subject.locked.resolution), "--", "python", "-c", STEP]
        environ = {**self.subject.environ, "TORCHKILN_CACHE": str(cache), "PATH": path}
        sample = measure(argv, env=environ, cwd=self.subject.scratch)[0]
        held = sum(tree_size(cache / kind)[0] for kind in ("rootfs", "erofs") if (cache / kind).is_dir())
        return sample + Sample(wall=0, user=0, system=0, peak=0, bytes=held)


def start(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure `run` of a training step: the first time, and again."""
    if subject.generated:
        return unimportable("start", _TITLE)
    with _scene(subject) as scene:
        sides = {
            "unpacked, first": (False, True, "the image is unpacked"),
            "mounted, first": (True, True, "the layers are converted to EROFS"),
            "unpacked, again": (False, False, "the unpacked image is in the cache"),
            "mounted, again": (True, False, "the EROFS images are in the cache"),
        }

        def contender(name: str, mounted: bool, empty: bool, what: str) -> Contender:
            cache = "mounted" if mounted else "unpacked"
            return Contender(
                name=name, what=what, run=lambda: scene.start(cache, mounted=mounted, empty=empty)
            )

        found = alternate([contender(name, *values) for name, values in sides.items()], rounds, say)
    return Outcome(
        name="start",
        title=_TITLE,
        state="the image in a layout, and its layers in the page cache",
        sides=tuple(found.values()),
        figures=tuple(
            Figure(
                what=f"start: mounted / unpacked, {when}",
                unit="×",
                values=per_round(found[f"mounted, {when}"].samples, found[f"unpacked, {when}"].samples),
            )
            for when in ("first", "again")
        ),
    )


def unimportable(name: str, title: str) -> Outcome:
    """The outcome for generated wheels."""
    left_out = (f"{title}: generated wheels cannot be imported",)
    return Outcome(name=name, title=title, state="", left_out=left_out)


@contextmanager
def _scene(subject: Subject) -> Iterator[StartScene]:
    """:raises Failed: this host cannot mount EROFS, or has no mkfs.erofs."""
    if reason := erofs_mount.fault():
        raise Failed(reason)
    folder = Path(tempfile.mkdtemp(prefix="start-", dir=subject.scratch))
    try:
        scene = StartScene(subject=subject, folder=folder, mkfs=mkfs_in(folder / "bin"))
        built = {
            **subject.environ,
            "TORCHKILN_CACHE": str(subject.cache("start", wheels=True, bytecode=True)),
        }
        argv = [*subject.command(), "--output", str(folder / "layout")]
        measure(argv, env=built, cwd=subject.scratch)
        yield scene
    except NoEngine as error:
        raise Failed(str(error)) from error
    finally:
        shutil.rmtree(folder)
