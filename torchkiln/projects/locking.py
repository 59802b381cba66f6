"""Runs `project lock`: reads a project's folder, and locks it on the lock of a cell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.tags import Tag

from torchkiln.base import artefact, tools
from torchkiln.base.remake import APT_EFFECTS, commit_effects
from torchkiln.errors import Stale, Unresolvable
from torchkiln.index.choose import tags_of
from torchkiln.index.download import Downloads
from torchkiln.index.package_index import PackageIndex, open_index
from torchkiln.index.read_page import required_by_name
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import EVERYTHING, kept_versions, on_base
from torchkiln.locks.session import date_of, record_of
from torchkiln.matrix.tags import tag_of
from torchkiln.model.apt import LockedApt, OsLayers
from torchkiln.model.cell import Cell
from torchkiln.model.index import LocalWheel
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.model.plan import ImagePlan
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.model.project import GitCommit, Origin, ProjectLock
from torchkiln.plan.load import plan_locked
from torchkiln.projects.apt.os_packages import layers_of, lock_apt, own_paths
from torchkiln.projects.asked import Asked, ProjectNeeds, applies, environment_of
from torchkiln.projects.exports import unused_locks
from torchkiln.projects.file import load_project, save_project
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.lock import LockedProject, Parent, lock_project
from torchkiln.projects.own_wheels import from_index, local_wheels
from torchkiln.projects.same_files import require_distinct
from torchkiln.projects.source import ProjectRequest, demand_own_name, fresh_parent, needs_of
from torchkiln.projects.sources.repositories import Repositories, demand_allowed
from torchkiln.projects.sources.sdist import SandboxedBuilder
from torchkiln.projects.sources.sdists import Sdists
from torchkiln.projects.symbols.libraries import fetch_for_check, is_unread
from torchkiln.projects.symbols.require import require_fitting, require_known, require_system, still_known
from torchkiln.projects.wheel_files import keep_own_wheels, wheel_by_url
from torchkiln.store.store import Store
from torchkiln.util.files import delete
from torchkiln.util.sizes import size
from torchkiln.util.versions import minor_of, numbers
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.metadata import metadata_in

_MOST_FETCHED = 512 << 20  # most bytes of wheels that `lock` downloads to check their libraries
_SKIPPED = 5  # most wheels that a message names


def lock_folder(
    request: ProjectRequest,
    locks: LockFolder,
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting = UNREPORTED,
) -> tuple[LockedProject, Path]:
    """Lock a project, and write its lock; versions of the present lock are kept unless upgraded.

    :returns: also the path of the lock.
    :param report: receives the progress messages.
    :raises ConfigError: the project's files are invalid, or exclude the image's Python or torch, or the
        project's name is that of another image.
    :raises Stale: the cell is not locked, or its lock or uv.lock is outdated.
    :raises Unresolvable: the requirements conflict, a package is not built for the image, or the archive
        cannot provide the OS packages.
    :raises BuildFailed: the OS packages cannot be installed in the image, or would change it; or source code
        cannot be fetched or built.
    :raises ToolMissing: git, or the sandbox for builds, is missing.
    """
    resolution = locks.resolution(request.cell)
    parent = fresh_parent(locks, request.cell, environ)
    previous = _previous(request)
    needs = needs_of(request.folder, parent, store, request.chosen(previous))
    demand_own_name(needs.name, tag_of(resolution), locks.matrix)
    index = open_index(environ, store)
    unchanged = previous and previous.inputs == inputs_digest(needs, parent) and not request.upgrade
    date = previous.as_of if previous and unchanged and request.as_of is None else date_of(request.as_of)
    own, left_out = _local(needs, request.folder, parent, index)
    kept = _kept_origins(previous, request.upgrade)
    known = {one.built.sha256: one.built for one in kept if one.built}
    builder = SandboxedBuilder(store=store, environ=environ, report=report, locate=locks.matrix.locate)
    sdists = Sdists(index, parent, builder, as_of=date, known=known)
    settings = index.pages.settings
    required = _repositories(needs, parent)
    sources = Repositories(store=store, settings=settings, environ=environ, say=report.say)
    built = _built(required, sources, sdists, {one.name: one.git for one in kept if one.git})
    offered = tuple(sdists.local(sorted({*needs.build} - {one.name for one in required}), own, _tags(parent)))
    record = record_of(
        resolution, locks.facts, by_record=bool(parent.by_record), pytorch_url=settings.pytorch_url
    )
    try:
        found = lock_project(
            needs,
            Parent(
                lock=parent,
                bound=locks.bound,
                known=record.known,
                torches=(torches := _torches(locks, request.cell)),
                reasons=_reasons(locks, request.cell, torches),
                wheels=_wheels_of_image(parent, store),
            ),
            index,
            as_of=date,
            kept=kept_versions(previous, request.upgrade),
            local=required_by_name((*own, *built, *offered)),
            untrusted=settings.untrusted,
        )
    except Unresolvable as error:
        more = "".join(f"\nskipped: {line}" for line in left_out[:_SKIPPED])
        raise Unresolvable(f"{error.message}{more}", hint=error.hint) from error
    found = replace(found, lock=sdists.finish(found.lock), notes=from_index(found.lock.wheels, own))
    keep_own_wheels(found.lock, request.folder, index.pages)
    lock = _with_allowed(found.lock, request, previous)
    _fetch(lock.wheels, index, report.say)
    present = _on_present_base(parent, store, environ)
    notes, unread = require_fitting(lock, present, store)
    why = {move.name: f" ({move.why})" for move in found.moves}
    notes += require_distinct(lock.wheels, store, Scheme.of(parent.python), why)
    versions = [(wheel.name, wheel.version) for wheel in lock.wheels]
    yanked = tuple((*one, index.yanked[one]) for one in versions if one in index.yanked)
    found = with_packages(
        replace(found, lock=lock, yanked=yanked, unread=unread, notes=(*found.notes, *notes)),
        needs.apt,
        kept_packages(previous.apt if previous else None, request.upgrade),
        plan_locked(parent, locks.matrix, locks.facts),
        store,
        environ=environ,
        report=report,
    )
    notes = (*require_system(found.lock, present, store), *unused_locks(request.folder, needs.source))
    found = replace(found, notes=(*found.notes, *notes))
    return found, save_locked(request.folder, found.lock, store)


def _wheels_of_image(image: LockedCell, store: Store) -> tuple[LocalWheel, ...]:
    """The wheels of *image*, each as the only candidate of its package; () if *store* lacks any of them."""
    if not all(map(store.has_wheel, image.wheels)):
        return ()
    return tuple(
        LocalWheel(
            name=wheel.name,
            version=wheel.version,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=wheel.size,
            requires_python="",  # not checked: the image has the wheel already
            metadata=partial(metadata_in, store.wheel(wheel), wheel.filename),
            only=True,
        )
        for wheel in image.wheels
    )


def _on_present_base(parent: LockedCell, store: Store, environ: Mapping[str, str]) -> LockedCell:
    """*parent* on the base that the cache has for it, which need not be the locked one."""
    return on_base(parent, artefact.present(parent.base, store, environ=environ), parent.tools)


def _with_allowed(lock: ProjectLock, request: ProjectRequest, previous: ProjectLock | None) -> ProjectLock:
    """*lock* with the list of libraries that may be missing: of *request*, or else of *previous*."""
    if request.may_lack is None:
        may_lack = still_known(previous.may_lack if previous else (), lock)
    else:
        require_known(request.may_lack, lock)
        may_lack = tuple(sorted({*request.may_lack}))
    return replace(lock, may_lack=may_lack)


def _fetch(wheels: Sequence[LockedWheel], index: PackageIndex, say: Callable[[str], None]) -> None:
    """Download the *wheels* that have libraries, or all of several, unless they exceed `_MOST_FETCHED`.

    :raises BadWheel: a file differs from the lock.
    """
    store = index.pages.store
    missing = [one for one in wheels if is_unread(one, store) or (wheels[1:] and not store.has_wheel(one))]
    total = sum(wheel.size for wheel in missing)
    if not missing or total > _MOST_FETCHED:
        return
    count = f"{len(missing)} wheel{'s' if len(missing) > 1 else ''}"
    say(f"downloads {count} ({size(total)}), to check their files; the build uses them, too")
    downloads = Downloads(index.pages)
    fetch_for_check(missing, lambda wheel: downloads.fetch_wheel(wheel, store))


def _local(
    needs: ProjectNeeds, folder: Path, parent: LockedCell, index: PackageIndex
) -> tuple[tuple[LocalWheel, ...], tuple[str, ...]]:
    """The wheels of *needs* from its folder or by URL that fit the image; a sentence for each other wheel."""
    python, fixed = parent.python.version, fixed_wheels(parent.wheels).keys()
    found, left_out = local_wheels(needs, folder, fixed, python, _tags(parent))
    by_url = (
        wheel_by_url(one, folder, index.pages)
        for one in needs.requirements
        if one.url and one.name not in fixed and applies(one.requirement, environment_of(python))
    )
    return (*found, *by_url), left_out


def _repositories(needs: ProjectNeeds, parent: LockedCell) -> tuple[Asked, ...]:
    """The requirements of *needs* that name a repository, for the image; without those of fixed packages.

    :raises ConfigError: as `demand_allowed`.
    """
    environment, fixed = environment_of(parent.python.version), fixed_wheels(parent.wheels)
    found = [one for one in needs.requirements if one.repository and one.name not in fixed]
    found = [one for one in found if applies(one.requirement, environment)]
    demand_allowed(found, needs.build)
    return tuple(found)


def _built(
    required: Iterable[Asked], sources: Repositories, sdists: Sdists, known: Mapping[str, GitCommit]
) -> tuple[LocalWheel, ...]:
    """Build the wheels of the repositories that *required* names.

    :param known: the commits of the present lock by package.
    """
    found: dict[str, LocalWheel] = {}
    for one in required:
        if one.repository and one.name not in found:
            commit = sources.commit_of(one.repository, known.get(one.name))
            found[one.name] = sdists.of_commit(sources.archive(one.name, commit), commit)
    return tuple(found.values())


def _kept_origins(previous: ProjectLock | None, upgrade: Collection[str]) -> tuple[Origin, ...]:
    """The origins in *previous* of packages that are not upgraded."""
    kept = kept_versions(previous, upgrade)
    return tuple(one for one in previous.origins if one.name in kept) if previous else ()


def _tags(parent: LockedCell) -> tuple[Tag, ...]:
    """The tags of wheels that the image accepts, best first."""
    cell = parent.resolution.cell
    return tags_of(cell.python, operating_system(cell.os).glibc)


def _previous(request: ProjectRequest) -> ProjectLock | None:
    """The present lock; None: there is none, or it is invalid and will be replaced."""
    try:
        return load_project(request.folder)
    except Stale:
        return None


def _torches(locks: LockFolder, cell: Cell) -> dict[str, str]:
    """The releases of torch for the flavor and system of *cell*, with the options for their CUDA; best first.

    Best are those with the CUDA of *cell*, then those that run from the same driver; the newest first.
    """
    driver, found = locks.resolution(cell).min_driver, []
    for torch, cuda in locks.matrix.pairs:
        other = locks.resolution(replace(cell, torch=torch, cuda=cuda))
        same = other.min_driver == driver
        runs = "runs from the same driver" if same else f"needs driver {other.min_driver} or newer"
        options = "" if cuda == cell.cuda else f" --cuda {cuda}, which {runs}"
        if other.build is not None:
            found.append((not options, same, numbers(torch), torch, options))
    best_last = {torch: options for *_, torch, options in sorted(found)}
    return dict(reversed(best_last.items()))


def _reasons(locks: LockFolder, cell: Cell, torches: Mapping[str, str]) -> dict[str, str]:
    """Why cells like *cell* have the constraints and requirements of traps, with the best other torch."""
    found: dict[str, str] = {}
    for trap in locks.facts.traps:
        other = next((one for one in torches if trap.releases and minor_of(one) not in trap.releases), "")
        way = f" (not with --torch {other}{torches[other]})" if other else ""
        found |= {
            text: f"of torch {cell.torch}: {trap.why}{way}" for text in (trap.constrain, trap.require) if text
        }
    return found


def with_packages(
    found: LockedProject,
    requested: tuple[str, ...],
    kept: LockedApt | None,
    plan: ImagePlan,
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting,
) -> LockedProject:
    """*found* with the OS packages *requested*, locked for the image of *plan*.

    :param kept: the OS packages of the present lock, used if request and layers are the same; None: lock them
        anew.
    :raises KilnError: as `lock_apt` does.
    """
    if not requested:
        return found
    layers, apt = layers_of(plan.locked), kept
    notes: tuple[str, ...] = ()
    if apt is None or apt.requested != requested or not layers.fits(apt):
        layers = _present(layers, store, environ, report)
    if apt is None or apt.requested != requested or not layers.fits(apt):
        apt, notes = lock_apt(requested, layers, own_paths(plan), store, environ=environ, report=report)
    lock = replace(found.lock, apt=apt, untrusted=found.lock.untrusted or apt.untrusted)
    return replace(found, lock=lock, notes=(*found.notes, *notes))


def save_locked(folder: Path, lock: ProjectLock, store: Store) -> Path:
    """Write *lock*, with the effects of its OS packages, into the project's *folder*; returns its path."""
    if lock.apt:
        commit_effects(folder, lock.apt, store)
    else:
        delete(folder / APT_EFFECTS)
    return save_project(folder, lock)


def kept_packages(apt: LockedApt | None, upgrade: tuple[str, ...]) -> LockedApt | None:
    """*apt*, unless *upgrade* names one of its packages, or everything."""
    return None if {*upgrade} & {*({deb.name for deb in apt.debs} if apt else ()), *EVERYTHING} else apt


def _present(layers: OsLayers, store: Store, environ: Mapping[str, str], report: Reporting) -> OsLayers:
    """*layers* with their blobs in *store*; if the locked ones cannot be had, those of the archive today."""
    base, _ = artefact.ensure(layers.base, store, environ=environ, report=report)
    found = layers.tools and tools.ensure(layers.tools, base, store, environ=environ, report=report)[0]
    return OsLayers(base=base, tools=found)
