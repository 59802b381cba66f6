"""An image of a layout → the report of the suite that ran inside it, as `smoke` and `build --smoke` give it.

Where the same checks passed on the same image and GPUs not long ago, that run's report is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from torchkiln.lock.lock import load_locked, lock_digest
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import PREFIX
from torchkiln.model.report import SmokeReport
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes import driver, runtime
from torchkiln.runtimes.command import Bind, Command, Exited, RuntimeSettings
from torchkiln.runtimes.runtime import ImageSource, RunnableImage
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.runtimes.unpacked import image_env
from torchkiln.smoke import history
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.pytest_wheels import pytest_wheels
from torchkiln.smoke.reuse import TIME, Question
from torchkiln.smoke.run import Checks, Subject, passed_on, smoke
from torchkiln.store.store import Store

_GPUS_OF_A_JOB = "CUDA_VISIBLE_DEVICES"  # as Slurm and people choose them on a host that others use too


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeRequest:
    """What is to run, and where."""

    checks: Checks
    runtime: str = "rootfs"  # of RUNTIMES
    gpus: str | None = None
    shm_size: int = 1 << 30  # bytes
    force: bool = False  # though a kept report says all that is asked


class SmokeListener(runtime.RuntimeListener, history.KeptRunsListener, Protocol):
    """Hears what a session does."""

    def answered(self, report: SmokeReport) -> None:
        """The kept *report* stands for the run."""

    def starts(self, request: SmokeRequest) -> None:
        """The checks start now."""


class SilentSmokeListener(runtime.SilentRuntimeListener):
    """A listener that nobody has to hear."""

    def answered(self, report: SmokeReport) -> None: ...

    def starts(self, request: SmokeRequest) -> None: ...

    def unsigned_runs(self, count: int) -> None: ...

    def not_kept(self, error: Exception) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeSession:
    """What the runs of one command have in common."""

    images: Path  # the folder of locks
    matrix: Callable[[], Matrix]  # for its policy's age of kept runs, and its repository
    store: Store
    listener: SmokeListener = field(default_factory=SilentSmokeListener)

    def run(self, ref: str, layout: Path, request: SmokeRequest) -> SmokeReport:
        """Run what is asked for inside the image *ref*, a tag or digest, of *layout*.

        :raises ConfigError: no such image, or no such lock.
        :raises ToolMissing: no engine answers, or this host makes no namespaces.
        """
        image, tag, locked = image_and_lock(ref, layout, self.images)
        began, kept = datetime.now(timezone.utc), KeptRuns(store=self.store, listener=self.listener)
        days = self.matrix().policy.age
        question = _question(image, request)
        if question and (report := kept.answer(question, began, days=days)):
            self.listener.answered(report)
            return report
        digest = lock_digest(locked)
        facts = facts_of(locked, labels(image), tag=tag, lock_digest=digest, manifest=image.manifest)
        wheels = pytest_wheels(request.checks.suite.requirements, self.store)
        ready = self._ready(image, layout, request)
        self.listener.starts(request)
        report = smoke(
            Subject(image=image.manifest, tag=tag, facts=facts),
            _Inside(ready=ready),
            request.checks,
            wheels=wheels,
            when=began.strftime(TIME),
        )
        kept.keep(report)
        return report

    def _ready(self, image: ImageOnDisk, layout: Path, request: SmokeRequest) -> RunnableImage:
        """The image where commands can run in it, with what this host's environment says of NCCL and GPUs."""
        chosen = RUNTIMES[request.runtime]
        env = passed_on(os.environ) | ({} if chosen.in_engine else _visible(os.environ))
        settings = RuntimeSettings(
            env=tuple(f"{name}={value}" for name, value in env.items()),
            gpus=request.gpus,
            shm_size=request.shm_size,
        )
        source = ImageSource(
            ref=image.ref,
            layout=layout,
            store=self.store,
            repository=lambda: self.matrix().repository,
            image=image,
        )
        return chosen.ready(source, settings, self.listener)


def image_and_lock(ref: str, layout: Path, images: Path) -> tuple[ImageOnDisk, str, LockedCell]:
    """The image *ref* of *layout*, its tag, and its lock in *images*.

    :raises ConfigError: no such image, or no such lock.
    """
    image = open_layout(layout).image(ref)
    tag = tag_in(image) or ref
    return image, tag, load_locked(images, tag)


def labels(image: ImageOnDisk) -> Mapping[str, str]:
    """Those that its config bears."""
    return image.config.get("config", {}).get("Labels") or {}


def tag_in(image: ImageOnDisk) -> str:
    """The tag that *image* was built under, as it says itself; empty: it says none."""
    return labels(image).get("org.opencontainers.image.version", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inside:
    """A ready image as smoke() wants it: every command is root's, without the image's entrypoint."""

    ready: RunnableImage
    python: str = f"{PREFIX}/bin/python"

    @property
    def name(self) -> str:
        return self.ready.runtime

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Exited:
        bound = tuple(Bind(source=source.resolve(), target=target) for target, source in binds.items())
        command = Command(argv=tuple(argv), entrypoint=False, user="0:0", workdir="/", binds=bound)
        return self.ready.captured(command, timeout_s=timeout_s)

    def killed_for_memory(self) -> int:
        return self.ready.killed_for_memory()


def _question(image: ImageOnDisk, request: SmokeRequest) -> Question | None:
    """What a kept report may answer; None: only a run can, or nobody here knows the GPUs."""
    checks = request.checks
    if request.force or checks.nonce or RUNTIMES[request.runtime].in_engine or _visible(os.environ):
        return None
    served = driver.driver_for(image_env(image), request.gpus)
    gpus = driver.models() if served else ()
    if served and len(gpus) != served.gpus:
        return None  # the kernel module does not say which they are, or we see only some of them
    return Question(
        image=image.manifest,
        suite=checks.suite.digest,
        runtime=request.runtime,
        gpus=gpus,
        checks=frozenset(check.id for check in checks.selected),
    )


def _visible(environ: Mapping[str, str]) -> dict[str, str]:
    return {_GPUS_OF_A_JOB: environ[_GPUS_OF_A_JOB]} if _GPUS_OF_A_JOB in environ else {}
