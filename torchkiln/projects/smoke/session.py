"""Implements `project smoke`: runs the checks of a project in its image, and makes the report.

The image must be the one that was built from the project's lock. torch is not checked, because its layers are
those of the parent image, and the reports of the parent image prove them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from torchkiln import __version__
from torchkiln.errors import ConfigError, Stale, VerificationFailed, printable
from torchkiln.model.lock import DebFile
from torchkiln.model.project import TEST, ProjectLock
from torchkiln.model.report import Finding, ProjectRun, SmokeReport
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.projects.asked import applies, environment_of
from torchkiln.projects.effect import files_of_records
from torchkiln.projects.file import FILE, project_digest
from torchkiln.projects.settings import FILE as SETTINGS
from torchkiln.projects.smoke.account import AccountPackage, ProjectAccount, account_of, is_project
from torchkiln.projects.smoke.checks import CHECKS, LIMIT, PROBE, ProjectSubject, project_suite
from torchkiln.projects.source import LockedFolder
from torchkiln.projects.symbols.require import require_known
from torchkiln.runtimes.command import RuntimeSettings
from torchkiln.runtimes.rootfs import demand_namespaces
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.history import KeptRuns, KeptRunsListener
from torchkiln.smoke.reuse import TIME, Question
from torchkiln.smoke.session import InsideImage
from torchkiln.smoke.snapshot import copied
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict
from torchkiln.smoke.verification import verified_tree
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

_RECORD = ".dist-info/RECORD"
_PROBE = Path(__file__).with_name(PROBE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectChecks:
    """The checks to run, and where.

    :raises ConfigError: a name in *only* is not a check.
    """

    only: tuple[str, ...] = ()  # ids; empty: all
    may_lack: tuple[str, ...] = ()  # libraries that may be missing, packages for which any may be missing
    limit_s: float = LIMIT  # seconds for each check
    runtime: str = "rootfs"  # a key of RUNTIMES
    shm_size: int = 1 << 30  # bytes
    gpus: str | None = None  # as in `RuntimeSettings`, but None means no GPUs
    nonce: str | None = None  # chosen by the requester and copied into the report

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.only) - CHECKS.keys()):
            faults = [f"no check of a project named {name}" for name in unknown]
            raise ConfigError.of(faults, hint=f"available: {', '.join(CHECKS)}")

    def selected(self, test: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The ids of the selected checks, in their order, for a project with the test command *test*.

        :raises ConfigError: the check `test` is selected, but the project has no test.
        """
        if TEST in self.only and not test:
            raise ConfigError(
                "--only test: the project has no test",
                hint=f'set its command in {SETTINGS}: test = ["python", "-m", "my_project.selftest"]',
            )
        return tuple(
            name for name in CHECKS if (not self.only or name in self.only) and (name != TEST or test)
        )


class ProjectListener(RuntimeListener, KeptRunsListener, Protocol):
    """Receives progress messages of a run."""

    def starts_checks(self, names: Sequence[str], runtime: str) -> None:
        """The checks *names* start to run, with *runtime*."""

    def finished(self, finding: Finding) -> None:
        """A check has ended."""


def check_project(
    project: LockedFolder,
    layout: Path,
    checks: ProjectChecks,
    store: Store,
    listener: ProjectListener,
    repository: Callable[[], str],
    *,
    days: float | None = None,
) -> SmokeReport:
    """Run *checks* in the image of *project* in *layout*; return the report, and keep it in the cache.

    :param repository: the name under which an engine has the project's images.
    :param days: the maximum age of a kept report of the same checks that is returned instead; None: none is.
    :raises ConfigError: there is no such image, `checks.may_lack` has an unknown name, or `checks.only` names
        the check `test` of a project without a test.
    :raises Stale: the image was built from another lock, or with another test.
    :raises VerificationFailed: a layer is damaged.
    :raises ToolMissing: the runtime or the engine is not available.
    """
    start, test = datetime.now(timezone.utc), project.settings.test
    names = checks.selected(test)
    require_known(checks.may_lack, project.lock)
    may_lack = tuple(sorted({*project.lock.may_lack, *checks.may_lack}))
    image, account = project_image(project, layout)
    kept, suite_of = KeptRuns(store=store, listener=listener), project_suite().digest
    settings = RuntimeSettings(gpus=checks.gpus or "none", shm_size=checks.shm_size)
    if days is not None:
        question = Question(
            image=image.manifest, suite=suite_of, runtime=checks.runtime, gpus=(), checks=frozenset(names)
        )
        report = kept.answer(question, start, days=days)
        run = report.project if report else None
        if report and run and (run.may_lack, run.gpus) == (may_lack, settings.gpus):
            listener.answered(report)
            return report
    demand_namespaces(checks.runtime, store.root)
    selected = RUNTIMES[checks.runtime]
    tree, verified, root = verified_tree(image, store, listener, in_engine=selected.in_engine)
    records = {path: item.entry.text or "" for path, item in tree.items() if path.endswith(_RECORD)}
    source = ImageSource(ref=image.ref, layout=layout, store=store, repository=repository, image=image)
    inside = InsideImage(ready=selected.ready(source, settings, listener))
    listener.starts_checks(names, inside.name)
    findings = []
    with probe_folder(needed="linkage" in names) as suite:
        subject = replace(subject_of(project, records, may_lack, suite), test=test)
        for name in names:
            findings.append(CHECKS[name](subject, inside, checks.limit_s))
            listener.finished(findings[-1])
    added = {path for package in subject.added for path in subject.installed.get(package, ())}
    report = SmokeReport(
        image=image.manifest,
        tag=image.ref,
        suite=suite_of,
        runtime=inside.name,
        tool=__version__,
        when=start.strftime(TIME),
        nonce=checks.nonce,
        findings=tuple(findings),
        verdict=verdict(findings),
        host="{}",
        verified=verified,
        root=root,
        project=ProjectRun(
            parent=account.parent,
            parent_image=account.parent_image,
            lock=project_digest(project.lock),
            named=subject.named,
            test=test,
            may_lack=may_lack,
            at_start=started(added, subject.site),
            gpus=settings.gpus or "",
        ),
    )
    kept.keep(report)
    return report


def started(paths: Iterable[str], site: str) -> tuple[str, ...]:
    """The names of the .pth files among *paths* in the folder *site*: Python runs them at each start."""
    files = (path.removeprefix(f"{site}/") for path in paths if path.startswith(f"{site}/"))
    return tuple(sorted(printable(name) for name in files if name.endswith(".pth") and "/" not in name))


def project_image(project: LockedFolder, layout: Path) -> tuple[ImageOnDisk, ProjectAccount]:
    """The image of *project* in *layout*, and what it states about itself.

    :raises ConfigError: there is no such image, or it is not the image of a project.
    :raises Stale: it was built from another lock, or with another test.
    """
    name, build = project.lock.name, f"run: torchkiln project build {project.folder}"
    found = open_layout(layout)
    if name not in found.refs():
        raise ConfigError(f"{layout}: no image of the project: {name!r}", hint=build)
    image = found.image(name)
    if not is_project(image):
        raise ConfigError(f"{layout}: {name} is not the image of a project", hint=build)
    stale = Stale(
        f"{layout}: {name} was built from a different lock than {project.folder / FILE}", hint=build
    )
    try:
        account = account_of(image)
    except VerificationFailed:
        raise stale from None
    debs = project.lock.apt.debs if project.lock.apt else ()
    if _stated(account, account.packages) != _stated(project.lock, debs):
        raise stale
    if account.settings.test != project.settings.test:
        raise Stale(
            f"{layout}: {name} was built with a different test than that in {project.folder / SETTINGS}",
            hint=f"{build}; git must not ignore {SETTINGS}, and it must not be a link",
        )
    return image, account


def subject_of(
    project: LockedFolder,
    records: Mapping[str, str],
    may_lack: tuple[str, ...] = (),
    suite: Path | None = None,
) -> ProjectSubject:
    """What the checks expect in the image of *project*; *records*: path -> text of each RECORD in it."""
    python = project.cell.python
    scheme, environment = Scheme.of(python), environment_of(python.version)
    asked = (one for one in project.needs.requirements if one.by_name)
    return ProjectSubject(
        named=tuple(sorted({one.name for one in asked if applies(one.requirement, environment)})),
        added=tuple(wheel.name for wheel in project.lock.wheels),
        installed={name: tuple(files) for name, files in files_of_records(records, scheme).items()},
        site=scheme.site,
        may_lack=may_lack,
        suite=suite,
        system=(project.cell.base.os, project.needs.apt),
    )


def _stated(
    found: ProjectAccount | ProjectLock, packages: Iterable[AccountPackage | DebFile]
) -> tuple[object, ...]:
    """What an image or a lock states about a project; *packages* are its OS packages."""
    return (
        found.name,
        list(found.requirements),
        [(one.name, one.version, one.sha256) for one in found.wheels],
        list(found.removed),
        [(one.name, one.version, one.architecture, one.sha256) for one in packages],
        found.parent_lock,
    )


@contextmanager
def probe_folder(*, needed: bool) -> Iterator[Path | None]:
    """A temporary folder with linkage_probe.py and the suite that it uses; None if it is not *needed*."""
    if not needed:
        yield None
        return
    files = {f"smoke_tests/{path}": data for path, data in load_suite().runnable().items()}
    with copied({**files, PROBE: _PROBE.read_bytes()}, "smoke-project") as folder:
        yield folder
