"""Runs the checks of a project in its image, as `smoke --project` does.

The image must be the one that was built from the project's lock. torch itself is not checked: its layers are
those of the image below, whose reports prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torchkiln.errors import ConfigError, Stale
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import PARENT_LABEL, ProjectLock
from torchkiln.model.recipe import PREFIX, minor
from torchkiln.model.report import Finding
from torchkiln.oci.labels import labels
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, layer_contents
from torchkiln.project.asked import ProjectNeeds
from torchkiln.project.file import FILE
from torchkiln.project.installed import files_of_records
from torchkiln.project.libraries import require_known
from torchkiln.project.plan import PROJECT_JSON
from torchkiln.project.target import applies, environment_of
from torchkiln.runtimes.command import RuntimeSettings
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.inside import InsideImage
from torchkiln.smoke.project.checks import CHECKS, LIMIT, PROBE, ProjectSubject
from torchkiln.smoke.snapshot import copied
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verification import verified_tree
from torchkiln.store.store import Store
from torchkiln.util.strict_json import json_of
from torchkiln.wheel.install import Scheme

_RECORD = ".dist-info/RECORD"
_PROBE = Path(__file__).with_name(PROBE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedProjectFolder:
    """A project, its lock, and the lock of the cell below its image; all belong together."""

    folder: Path
    needs: ProjectNeeds
    lock: ProjectLock
    cell: LockedCell


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectChecks:
    """The checks to run, and where.

    :raises ConfigError: there is no check with a name in *only*.
    """

    only: tuple[str, ...] = ()  # ids; empty: all
    may_lack: tuple[str, ...] = ()  # libraries that may be missing, packages whose libraries may lack any
    limit_s: float = LIMIT  # of each check
    runtime: str = "rootfs"  # of RUNTIMES
    shm_size: int = 1 << 30  # bytes

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.only) - CHECKS.keys()):
            faults = [f"no check of a project named {name}" for name in unknown]
            raise ConfigError.of(faults, hint=f"available: {', '.join(CHECKS)}")

    @property
    def selected(self) -> tuple[str, ...]:
        """The ids of the selected checks, in their order."""
        return tuple(name for name in CHECKS if not self.only or name in self.only)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedProject:
    """The image that was checked, and the findings."""

    image: ImageOnDisk
    parent: str  # TAG@DIGEST of the image below
    findings: tuple[Finding, ...]


class ProjectListener(RuntimeListener, Protocol):
    """Receives progress messages of a run."""

    def starts_checks(self, names: Sequence[str], runtime: str) -> None:
        """The checks *names* start."""

    def finished(self, finding: Finding) -> None:
        """A check has ended."""


def check_project(
    project: LockedProjectFolder,
    layout: Path,
    checks: ProjectChecks,
    store: Store,
    listener: ProjectListener,
    repository: Callable[[], str],
) -> CheckedProject:
    """Run *checks* in the image of *project* in *layout*, without a GPU.

    :param repository: the repository of its images in an engine.
    :raises ConfigError: there is no such image, or `may_lack` has an unknown name.
    :raises Stale: it was built from another lock.
    :raises VerificationFailed: a layer is damaged.
    :raises ToolMissing: the runtime or the engine is not available.
    """
    require_known(checks.may_lack, project.lock)
    may_lack = tuple(sorted({*project.lock.may_lack, *checks.may_lack}))
    image = project_image(project, layout)
    selected = RUNTIMES[checks.runtime]
    tree, _ = verified_tree(image, store, listener, in_engine=selected.in_engine)
    records = {path: item.entry.text or "" for path, item in tree.items() if path.endswith(_RECORD)}
    source = ImageSource(ref=image.ref, layout=layout, store=store, repository=repository, image=image)
    settings = RuntimeSettings(gpus="none", shm_size=checks.shm_size)
    inside = InsideImage(ready=selected.ready(source, settings, listener))
    listener.starts_checks(checks.selected, inside.name)
    findings = []
    with probe_folder(needed="linkage" in checks.selected) as suite:
        subject = subject_of(project, records, may_lack, suite)
        for name in checks.selected:
            findings.append(CHECKS[name](subject, inside, checks.limit_s))
            listener.finished(findings[-1])
    return CheckedProject(image=image, parent=labels(image)[PARENT_LABEL], findings=tuple(findings))


def project_image(project: LockedProjectFolder, layout: Path) -> ImageOnDisk:
    """The image of *project* in *layout*.

    :raises ConfigError: there is none, or one of that name is not a project's.
    :raises Stale: it was built from another lock.
    """
    name, build = project.lock.name, f"run: torchkiln build --project {project.folder}"
    found = open_layout(layout)
    if name not in found.refs():
        raise ConfigError(f"{layout}: no image of the project: {name!r}", hint=build)
    image = found.image(name)
    if PARENT_LABEL not in labels(image):
        raise ConfigError(f"{layout}: {name} is not the image of a project", hint=build)
    if _built_from(image) != _of_lock(project.lock):
        raise Stale(f"{layout}: {name} was built from another lock than {project.folder / FILE}", hint=build)
    return image


def subject_of(
    project: LockedProjectFolder,
    records: Mapping[str, str],
    may_lack: tuple[str, ...] = (),
    suite: Path | None = None,
) -> ProjectSubject:
    """The subject of the checks for an image with these *records*, path -> text of RECORD."""
    python = project.cell.base.python
    scheme, environment = Scheme(prefix=PREFIX, python=minor(python)), environment_of(python)
    asked = (one for one in project.needs.requirements if one.by_name)
    return ProjectSubject(
        named=tuple(sorted({one.name for one in asked if applies(one.requirement, environment)})),
        added=tuple(wheel.name for wheel in project.lock.wheels),
        installed={name: tuple(files) for name, files in files_of_records(records, scheme).items()},
        site=scheme.site,
        may_lack=may_lack,
        suite=suite,
    )


def _built_from(image: ImageOnDisk) -> Any:
    """What project.json of *image* has of the lock; None: it cannot be read."""
    try:
        with open_layer(image.layers[-1].path) as stream:
            texts = layer_contents(stream, lambda path: path == PROJECT_JSON).texts
        facts = json_of(texts[PROJECT_JSON].encode())
        return {**{key: facts[key] for key in _FACTS}, "parent": facts["parent"]["lock"]}
    except (*DAMAGED, KeyError, TypeError, IndexError):
        return None


_FACTS = ("name", "requirements", "wheels", "removed")


def _of_lock(lock: ProjectLock) -> Any:
    return {
        "name": lock.name,
        "requirements": list(lock.requirements),
        "wheels": [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in lock.wheels],
        "removed": list(lock.removed),
        "parent": lock.parent_lock,
    }


@contextmanager
def probe_folder(*, needed: bool) -> Iterator[Path | None]:
    """A folder with linkage_probe.py and the suite that it uses."""
    if not needed:
        yield None
        return
    files = {f"smoke_tests/{path}": data for path, data in load_suite().runnable().items()}
    with copied({**files, PROBE: _PROBE.read_bytes()}, "smoke-project") as folder:
        yield folder
