"""Run the suite in an image of a layout, for the commands `smoke` and `build`.

If the same checks passed recently on the same image and GPUs, the report of that run is returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from torchkiln.engine.image_lock import lock_of
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import PARENT_LABEL
from torchkiln.model.recipe import PREFIX
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.labels import container_config, labels, tag_in
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes import driver, runtime
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Bind, Command, Exited, RuntimeSettings
from torchkiln.runtimes.rootfs import demand_namespaces
from torchkiln.runtimes.runtime import ImageSource, RunnableImage
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.runtimes.unpacked import image_env
from torchkiln.smoke import history
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.pytest_wheels import pytest_wheels
from torchkiln.smoke.reuse import TIME, Question
from torchkiln.smoke.run import Checks, SmokeSubject, not_run, passed_on, smoke
from torchkiln.smoke.verification import verification
from torchkiln.store.store import Store

_GPUS_OF_A_JOB = "CUDA_VISIBLE_DEVICES"  # set by Slurm and by users of shared hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeRequest:
    checks: Checks
    runtime: str = "rootfs"  # a key of RUNTIMES
    gpus: str | None = None
    shm_size: int = 1 << 30  # bytes
    force: bool = False  # run the checks even if there is a kept report


class SmokeListener(runtime.RuntimeListener, history.KeptRunsListener, Protocol):
    def starts(self, request: SmokeRequest) -> None:
        """The checks start to run."""

    def finished(self, finding: Finding) -> None:
        """A check has ended; others may still run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeSession:
    """Runs checks with the settings that all runs of a command share."""

    images: Path  # the folder of locks
    matrix: Callable[[], Matrix]  # for the policy's maximum age of kept runs, and the repository's name
    store: Store
    listener: SmokeListener

    def run(self, ref: str | None, layout: Path, request: SmokeRequest) -> SmokeReport:
        """Run the checks of *request* in the image *ref* (tag or digest) of *layout*; None: its only image.

        In a project's image, checks that compare an image with its lock do not run: it has none of a cell.

        :raises ConfigError: there is no such image, or no such check.
        :raises Stale: there is no lock for it.
        :raises ToolMissing: the engine cannot be reached, or this host does not allow namespaces.
        """
        image, tag, locked = image_and_lock(ref, layout, self.images, self.store)
        if of_project := PARENT_LABEL in labels(image):
            suite = request.checks.suite
            suite = replace(suite, checks=tuple(check for check in suite.checks if not check.of_image))
            checks = replace(request.checks, suite=suite)
            only = tuple(check.id for check in checks.selected)
            request = replace(request, checks=replace(checks, only=only))
        start, kept = datetime.now(timezone.utc), KeptRuns(store=self.store, listener=self.listener)
        days = self.matrix().policy.age
        question = _question(image, request)
        if question and (report := kept.answer(question, start, days=days)):
            self.listener.answered(report)
            return report
        demand_namespaces(request.runtime, self.store.root)
        digest = lock_digest(locked)
        facts = facts_of(
            locked, container_config(image), tag=tag, lock_digest=digest, manifest=image.manifest
        )
        in_engine = RUNTIMES[request.runtime].in_engine
        own = None if of_project else locked
        seen = verification(image, own, self.store, self.listener, in_engine=in_engine)
        subject = SmokeSubject(
            image=image.manifest,
            tag=tag,
            facts=facts,
            verified=seen.when,
            root=seen.root,
            wheels={} if in_engine else cut_wheels(locked, self.store),  # an engine may run on another host
        )
        when = start.strftime(TIME)
        if seen.faults:
            report = not_run(subject, request.checks, seen.faults, runtime=request.runtime, when=when)
            kept.keep(report)
            return report
        wheels = pytest_wheels(request.checks.suite.requirements, self.store)
        ready = self._ready(image, layout, request)
        self.listener.starts(request)
        report = smoke(
            subject,
            InsideImage(ready=ready, user="0:0", workdir="/"),
            request.checks,
            wheels=wheels,
            when=when,
            on_finding=self.listener.finished,
        )
        kept.keep(report)
        return report

    def _ready(self, image: ImageOnDisk, layout: Path, request: SmokeRequest) -> RunnableImage:
        """Prepare the image, with this host's environment variables for NCCL and GPUs."""
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


def tier_here(policy: Policy) -> int:
    """The highest tier of *policy* that this host's GPUs can run; two GPUs also run tier 2."""
    found, visible = driver.find_driver(), os.environ.get(_GPUS_OF_A_JOB)
    gpus, highest = found.gpus if found else 0, max(policy.tiers, default=0)
    if visible is not None:
        gpus = min(gpus, sum(name not in ("", "-1") for name in visible.split(",")))
    return max(highest, 2) if gpus > 1 else min(highest, gpus)


def cut_wheels(locked: LockedCell, store: Store) -> dict[str, Path]:
    """Name -> file in *store*, of each wheel whose libraries are cut in the image."""
    names = locked.device_code.wheels if locked.device_code else ()
    found = (wheel for wheel in locked.wheels if wheel.name in names and store.has_wheel(wheel))
    return {wheel.name: store.wheel(wheel) for wheel in found}


def image_and_lock(
    ref: str | None, layout: Path, images: Path, store: Store
) -> tuple[ImageOnDisk, str, LockedCell]:
    """The image *ref* of *layout* (None: its only image), its tag, and its lock, as `lock_of` finds it.

    Tag and lock of the image of a project are those of its parent image.

    :raises ConfigError: there is no such image.
    :raises Stale: there is no lock for it.
    """
    image = open_layout(layout).image(ref)
    parent = labels(image).get(PARENT_LABEL, "").partition("@")[0]
    tag = parent or tag_in(image) or image.ref
    return image, tag, lock_of(image, tag, layout, images, store)


def _question(image: ImageOnDisk, request: SmokeRequest) -> Question | None:
    """The run to look for among kept reports; None if the checks must run, or if the GPUs are unknown."""
    checks = request.checks
    if request.force or checks.nonce or RUNTIMES[request.runtime].in_engine or _visible(os.environ):
        return None
    host_driver = driver.driver_for(image_env(image), request.gpus)
    gpus = driver.models() if host_driver else ()
    if host_driver and len(gpus) != host_driver.gpus:
        return None  # the models are unknown, or only some of the GPUs are visible
    return Question(
        image=image.manifest,
        suite=checks.suite.digest,
        runtime=request.runtime,
        gpus=gpus,
        checks=frozenset(check.id for check in checks.selected),
    )


def _visible(environ: Mapping[str, str]) -> dict[str, str]:
    return {_GPUS_OF_A_JOB: environ[_GPUS_OF_A_JOB]} if _GPUS_OF_A_JOB in environ else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideImage:
    """Implements `run.Inside` for an image that a runtime has prepared; skips the image's entrypoint."""

    ready: RunnableImage
    user: str | None = None  # UID:GID; None: the user of the image's config
    workdir: str | None = None  # None: that of the image's config
    python: str = f"{PREFIX}/bin/python"

    @property
    def name(self) -> str:
        return self.ready.runtime

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        bound = tuple(Bind(source=source.resolve(), target=target) for target, source in binds.items())
        command = Command(
            argv=tuple(argv), entrypoint=False, user=self.user, workdir=self.workdir, binds=bound
        )
        return self.ready.captured(command, timeout_s=timeout_s, on_line=on_line)

    def killed_for_memory(self) -> int:
        return self.ready.killed_for_memory()
