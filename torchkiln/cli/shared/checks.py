"""An image of a layout → the report of the suite that ran inside it: for `smoke run` and `build --smoke`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from torchkiln.cli.shared.console import waiting
from torchkiln.cli.shared.options import cache_root
from torchkiln.cli.shared.smoke_history import kept
from torchkiln.errors import ConfigError

if TYPE_CHECKING:
    from torchkiln.model.lock import LockedCell
    from torchkiln.model.report import SmokeReport
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.runtimes.oci import OciRuntime
    from torchkiln.runtimes.rootfs import Exited, RootfsRuntime
    from torchkiln.smoke.reuse import Question
    from torchkiln.smoke.run import Inside
    from torchkiln.smoke.suite import Suite

Runtime = Literal["rootfs", "crun", "runc", "docker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """What is to run, and where; as on the command line of `smoke run`."""

    suite: Suite
    tier: int = 0
    only: tuple[str, ...] = ()
    limit: float = 1800.0  # seconds for all checks together
    nonce: str | None = None
    runtime: Runtime = "rootfs"
    gpus: str | None = None
    shm_size: int = 1 << 30  # bytes
    force: bool = False  # though a kept report says all that is asked


def suite_of(folder: Path | None, only: Sequence[str] = ()) -> Suite:
    """The suite in *folder*, or ours.

    :raises ConfigError: there is none, or none of its checks has a name in *only*.
    """
    from torchkiln.smoke.suite import load_suite
    from torchkiln.util.places import ROOT

    suite = load_suite(folder or ROOT / "smoke_tests")
    if unknown := sorted(set(only) - {check.id for check in suite.checks}):
        known = ", ".join(check.id for check in suite.checks)
        raise ConfigError.of([f"no check named {name}" for name in unknown], hint=f"there are: {known}")
    return suite


def run_checks(ref: str, output: Path, images: Path, matrix_file: Path, checks: Checks) -> SmokeReport:
    """Run *checks* inside the image *ref* of the layout *output*, whose lock is in *images*.

    Where the same checks passed on the same image and GPUs not long ago, that run's report is given.

    :raises ConfigError: no such image, or no such lock.
    :raises ToolMissing: no engine answers, or this host makes no namespaces.
    """
    from torchkiln.lock.lock import lock_digest
    from torchkiln.model.image import BuiltImage
    from torchkiln.smoke.expected import facts_of
    from torchkiln.smoke.pytest_wheels import pytest_wheels
    from torchkiln.smoke.reuse import TIME
    from torchkiln.smoke.run import smoke
    from torchkiln.store.store import Store

    found, tag, locked = image_and_lock(ref, output, images)
    began, reports = datetime.now(timezone.utc), kept(Store(cache_root()), matrix_file)
    if (question := _question(found, checks)) and (report := reports.answer(question, began)):
        return report
    labels = _labels(found)
    facts = facts_of(locked, labels, tag=tag, lock_digest=lock_digest(locked), manifest=found.manifest)
    wheels = pytest_wheels(checks.suite.requirements, Store(cache_root()))
    inside = _inside(found, tag, output, matrix_file, checks)
    click.echo(f"smoke: checks of tier {checks.tier} and below, runtime {checks.runtime}", err=True)
    report = smoke(
        BuiltImage(
            tag=tag,
            manifest=found.manifest,
            config=found.config_digest,
            layout=str(output),
            ref=found.ref,
            layers=(),
        ),
        inside,
        checks.suite,
        facts,
        wheels=wheels,
        when=began.strftime(TIME),
        nonce=checks.nonce,
        tier=checks.tier,
        only=checks.only,
        limit_s=checks.limit,
    )
    reports.keep(report)
    return report


def image_and_lock(ref: str, output: Path, images: Path) -> tuple[ImageOnDisk, str, LockedCell]:
    """The image *ref* of the layout *output*, its tag, and its lock in *images*.

    :raises ConfigError: no such image, or no such lock.
    """
    from torchkiln.lock.lock import load_locked
    from torchkiln.oci.layout import open_layout

    found = open_layout(output).image(ref)
    tag = _labels(found).get("org.opencontainers.image.version", ref)
    return found, tag, load_locked(images, tag)


def _question(image: ImageOnDisk, checks: Checks) -> Question | None:
    """What a kept report may answer; None: only a run can, or nobody here knows the GPUs."""
    from torchkiln.runtimes.driver import driver_for, models
    from torchkiln.smoke.reuse import Question

    if checks.force or checks.nonce or checks.runtime == "docker" or _visible(os.environ):
        return None
    driver = driver_for(_env(image), checks.gpus)
    gpus = models() if driver else ()
    if driver and len(gpus) != driver.gpus:
        return None  # the kernel module does not say which they are, or we see only some of them
    wanted = (check for check in checks.suite.checks if check.tier <= checks.tier)
    return Question(
        image=image.manifest,
        suite=checks.suite.digest,
        runtime=checks.runtime,
        gpus=gpus,
        checks=frozenset(check.id for check in wanted if not checks.only or check.id in checks.only),
    )


def _env(image: ImageOnDisk) -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in image.config.get("config", {}).get("Env") or ())


def _labels(image: ImageOnDisk) -> Mapping[str, str]:
    return image.config.get("config", {}).get("Labels") or {}


@dataclass(frozen=True, kw_only=True, slots=True)
class InRoot:
    """An unpacked image as smoke() wants it."""

    root: Path
    env: Mapping[str, str]
    runtime: RootfsRuntime | OciRuntime
    python: str
    name: str

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Exited:
        """As root, with what is bound read-only."""
        from torchkiln.runtimes.rootfs import Bind

        bound = [Bind(source=source.resolve(), target=target) for target, source in binds.items()]
        return self.runtime.run(self.root, argv, env=self.env, binds=bound, timeout_s=timeout_s)

    def killed_for_memory(self) -> int:
        """By this kernel."""
        from torchkiln.runtimes.driver import killed_for_memory

        return killed_for_memory()


def _inside(found: ImageOnDisk, tag: str, output: Path, matrix_file: Path, checks: Checks) -> Inside:
    if checks.runtime == "docker":
        from torchkiln.cli.shared.smoke_on_docker import in_container

        return in_container(found.ref, output, matrix_file, checks.gpus, checks.shm_size)
    return _in_root(found, tag, checks)


def _visible(environ: Mapping[str, str]) -> dict[str, str]:
    """The GPUs of a job, as Slurm and people choose them on a host that others use too."""
    name = "CUDA_VISIBLE_DEVICES"
    return {name: environ[name]} if name in environ else {}


def _in_root(found: ImageOnDisk, tag: str, checks: Checks) -> InRoot:
    """The image unpacked in the cache, with the environment of its config, and this host's GPUs."""
    from torchkiln.oci.unpack import LayerBlob, unpacked_root
    from torchkiln.recipe import PREFIX
    from torchkiln.runtimes.driver import driver_for
    from torchkiln.runtimes.oci import OciRuntime
    from torchkiln.runtimes.rootfs import RootfsRuntime
    from torchkiln.smoke.run import passed_on
    from torchkiln.store.store import Store

    blobs = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in found.layers]
    env = _env(found)
    driver = driver_for(env, checks.gpus)
    click.echo(f"smoke: unpacking {tag} ({found.manifest[:19]}) where it is not", err=True)
    return InRoot(
        root=unpacked_root(found.manifest, blobs, Store(cache_root(), on_wait=waiting)),
        env={**env, **passed_on(os.environ), **_visible(os.environ)},
        runtime=RootfsRuntime(shm_size=checks.shm_size, driver=driver)
        if checks.runtime == "rootfs"
        else OciRuntime(program=checks.runtime, shm_size=checks.shm_size, driver=driver),
        python=f"{PREFIX}/bin/python",
        name=checks.runtime,
    )
