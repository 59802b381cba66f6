"""Builds the image of a project on the image of its cell, which is built first."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.base.remake import APT_EFFECTS, committed_effects, learn
from torchkiln.engine import image as image_build
from torchkiln.engine.build import BuildOptions, build
from torchkiln.engine.cache_claims import build_needs, remember_image
from torchkiln.engine.environment import Environment, with_vaults
from torchkiln.engine.prefetch import fetched
from torchkiln.errors import Stale
from torchkiln.locks.file import lock_digest
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import PythonArchive
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.projects.apt.os_packages import ensure_apt, layers_of, own_paths
from torchkiln.projects.built_layers import remember_layers
from torchkiln.projects.code import ProjectCode, read_code
from torchkiln.projects.effect import Effect, Files, effect_of, files_in_layer, files_of_wheel
from torchkiln.projects.file import FILE, load_project
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.plan import Parent, at_start, plan_project
from torchkiln.projects.same_files import require_distinct
from torchkiln.projects.settings import read_settings
from torchkiln.projects.source import (
    LockedFolder,
    ProjectRequest,
    demand_own_name,
    fresh_parent,
    locked_folder,
    needs_of,
)
from torchkiln.projects.symbols.libraries import fetch_for_check, is_unread
from torchkiln.projects.symbols.require import require_fitting, require_system
from torchkiln.projects.wheel_fetcher import OwnWheels, ProjectWheels
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

if TYPE_CHECKING:
    from torchkiln.projects.lock import LockedProject

_RECORDS = "effects"
_RULES = 3  # raise it when `effect_of` returns another result for the same input


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSource(LockedFolder):
    """A project with its locks and its code: what its image is built from."""

    code: ProjectCode


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltProject:
    """The images of a project and of its parent, and what the project's packages change in the latter."""

    built: image_build.BuildResult
    parent: image_build.BuildResult
    parent_plan: ImagePlan
    plan: ImagePlan
    lock: ProjectLock  # its OS packages are those for the base that was used
    effect: Effect
    at_start: tuple[str, ...]  # what Python runs at each start because of the project


def source_of(
    request: ProjectRequest,
    locks: LockFolder,
    store: Store,
    *,
    environ: Mapping[str, str],
    made: Callable[[LockedProject, Path], None] | None,
    report: Reporting = UNREPORTED,
) -> ProjectSource:
    """The project of *request*, whose locks are fresh; the project's lock is made if there is none.

    :param made: receives a new lock and its path; None: no lock is made.
    :param report: gets the steps in which a lock's OS packages are installed.
    :raises ConfigError: a file of the project is invalid, or its code cannot be in an image.
    :raises Stale: a lock is outdated, or there is no lock and *made* is None.
    :raises Unresolvable: the project's requirements conflict with the image.
    """
    folder, settings = request.folder, read_settings(request.folder)

    def code(wheels: Iterable[str]) -> ProjectCode:
        """The code without *wheels*, which are installed, the folder of the setting `wheels`, and effects."""
        without = (settings.wheels, APT_EFFECTS, *wheels)
        return read_code(folder, without=tuple(filter(None, without)))

    if made and load_project(folder) is None:
        from torchkiln.projects.locking import lock_folder  # imported here because it loads slowly

        parent = fresh_parent(locks, request.cell, environ)
        needs = needs_of(folder, parent, store, request.chosen(None))
        code(one.path for one in needs.requirements)  # its faults are reported before a lock is made
        made(*lock_folder(request, locks, store, environ=environ, report=report))
    project = locked_folder(request, locks, store, environ)
    if apt := project.lock.apt:
        learn(folder, apt, store)
        if (effects := folder / APT_EFFECTS).exists() and not committed_effects(folder, apt):
            report.say(f"warning: {effects} was made for another lock of the project, and is not used")
    return ProjectSource(
        folder=folder,
        cell=project.cell,
        lock=project.lock,
        needs=project.needs,
        settings=settings,
        code=code(origin.path for origin in project.lock.origins),
    )


def build_project(
    source: ProjectSource,
    matrix: Matrix,
    facts: Facts,
    layout: Path,
    environment: Environment,
    options: BuildOptions,
) -> BuiltProject:
    """Build the cell's image into *layout*, then that of the project on it, under the project's name.

    :raises Stale: the project was locked for another lock of the cell.
    :raises BuildFailed: as `image.build` and `ensure_apt`, or a package of the project would change the
        parent image (see `effect_of`).
    :raises ConfigError: the code hides a package of the image.
    :raises Unresolvable: a library of a package cannot be loaded in the image.
    """
    locked, project, code = source.cell, source.lock, source.code
    if project.parent_lock != lock_digest(locked):
        raise Stale(
            f"{FILE} was made for another lock of {project.parent}", hint="run: torchkiln project lock DIR"
        )
    demand_own_name(project.name, tag_of(locked.resolution), matrix)
    own_wheels = with_project_wheels(source, locked, environment, matrix.locate)
    _check_libraries(source, locked, own_wheels, final=False)
    below = build(locked, matrix, facts, layout, environment, options=options)
    plan = below.plan
    # Wheels are built on the base that was used, which may not be the locked one.
    environment = with_project_wheels(source, plan.locked, environment, matrix.locate)
    _check_libraries(source, plan.locked, environment, final=True)
    started, store = time.monotonic(), environment.store
    parent = Parent(plan=plan, manifest=below.image.manifest)
    draft = plan_project(parent, project, code, Effect())
    with store.claim(f"builds {project.name}", build_needs(draft)):
        project = _with_packages(project, plan, environment)
        draft = plan_project(parent, project, code, Effect())
        effect, made = _effect(parent, project, draft, environment, foreign=options.foreign)
        final = plan_project(parent, project, code, effect, source.settings)
        built = _image(final, layout, environment, options, effect, made)
    own = time.monotonic() - started
    seconds = (*below.seconds[:-1], ("project", own), ("total", below.seconds[-1][1] + own))
    image = replace(built.image, base_moved=below.image.base_moved)
    return BuiltProject(
        built=replace(built, image=image, seconds=seconds),
        parent=below,
        parent_plan=plan,
        plan=final,
        lock=project,
        effect=effect,
        at_start=at_start(code, effect),
    )


def rebuild_project(
    before: BuiltProject,
    source: ProjectSource,
    matrix: Matrix,
    layout: Path,
    environment: Environment,
    options: BuildOptions,
) -> BuiltProject:
    """Build the image of *before* again, with code and settings of *source*; both have the same locks.

    The cell's image is not built again, and what the packages change in it is not computed again.

    :raises BuildFailed: as `image.build`.
    :raises ConfigError: the code hides a package of the image.
    """
    started = time.monotonic()
    environment = with_project_wheels(source, before.parent_plan.locked, environment, matrix.locate)
    parent = Parent(plan=before.parent_plan, manifest=before.parent.image.manifest)
    final = plan_project(parent, before.lock, source.code, before.effect, source.settings)
    with environment.store.claim(f"builds {final.tag}", build_needs(final)):
        built = _image(final, layout, environment, options, before.effect)
    image = replace(built.image, base_moved=before.built.image.base_moved)
    seconds = (("total", time.monotonic() - started),)
    return replace(
        before,
        built=replace(built, image=image, seconds=seconds),
        plan=final,
        at_start=at_start(source.code, before.effect),
    )


def _image(
    final: ImagePlan,
    layout: Path,
    environment: Environment,
    options: BuildOptions,
    effect: Effect,
    made: Collection[str] = (),
) -> image_build.BuildResult:
    """Build the project's own image, under its name, and record its layers for the gate.

    :param made: titles of layers that this run has made, so that they do not count as reused.
    """
    built = image_build.build(
        final,
        layout,
        environment,
        refs=(final.tag,),
        layer_format=options.layer_format,
        foreign=options.foreign,
    )
    reused = tuple(title for title in built.reused if title not in made)
    remember_image(environment.store, built.image, final, reused)
    remember_layers(environment.store, final, built.image, effect.overwritten)
    return replace(built, reused=reused)


def _check_libraries(
    source: ProjectSource, cell: LockedCell, environment: Environment, *, final: bool
) -> None:
    """Check that the libraries of the project's packages can be loaded in the image of *cell*.

    A wheel that is neither in the cache nor available is not checked.

    :param final: the parent image exists, so that wheels can be built from sdists on it; wheels that are
        still missing are reported.
    """
    store = environment.store
    built = {origin.name for origin in source.lock.origins if origin.built}
    wheels = [wheel for wheel in source.lock.wheels if (wheel.name in built) is final]
    missing = [wheel for wheel in wheels if is_unread(wheel, store)]
    fetch_for_check(missing, lambda wheel: fetched(wheel, environment))
    notes, unread = require_fitting(source.lock, cell, store)
    notes += require_system(source.lock, cell, store)
    if unread:
        notes += (
            "cannot check whether the libraries of these packages can be loaded in the image, because their"
            f" wheels are not in the cache: {', '.join(unread)}",
        )
    for note in notes if final else ():
        environment.say(f"warning: {note}")


def _with_packages(project: ProjectLock, parent: ImagePlan, environment: Environment) -> ProjectLock:
    """*project*, its OS packages resolved on the base and tools of *parent*, which may differ from the lock.

    :raises KilnError: as `ensure_apt` does.
    """
    if project.apt is None:
        return project
    report = Reporting(say=environment.say, observer=environment.observer)
    layers, own, environ = layers_of(parent.locked), own_paths(parent), environment.environ
    apt = ensure_apt(project.apt, layers, own, environment.store, environ=environ, report=report)
    return replace(project, apt=apt)


def with_project_wheels(
    source: ProjectSource, cell: LockedCell, environment: Environment, locate: Callable[[PythonArchive], str]
) -> Environment:
    """*environment* with a fetcher that also provides the project's wheels that no index has.

    :param cell: the cell on whose base wheels are built again.
    :param locate: the path or URL of the archive of its standalone Python.
    """

    def rebuild(wheel: LockedWheel, origin: Origin) -> Path:
        from torchkiln.projects.sources.repositories import rebuilt  # imported here because it loads slowly

        return rebuilt(wheel, origin, cell, environment, locate)

    environ = environment.environ
    own = OwnWheels(source.folder, source.lock.origins, environment.store, environ, rebuild)
    fetcher = ProjectWheels(environment.fetcher, with_vaults(own, environ))
    return replace(environment, fetcher=fetcher)


def _effect(
    parent: Parent, project: ProjectLock, draft: ImagePlan, environment: Environment, *, foreign: bool
) -> tuple[Effect, frozenset[str]]:
    """The effect of the project's packages, and the titles of layers that were made to determine it.

    The effect is read from the cache if it is known for the same wheels; else it is determined from layers
    and wheels, and recorded.
    """
    store, locked = environment.store, parent.plan.locked
    inputs = {
        "rules": _RULES,
        "parent": [wheel.sha256 for wheel in locked.wheels],
        "project": [wheel.sha256 for wheel in project.wheels],
        "python": locked.python.version,
        # The effect has paths, and two systems may have the same Python in different folders.
        **({"folder": locked.python.folder} if locked.python.of_another else {}),
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if record := store.record(_RECORDS, key):
        return Effect(**{name: tuple(record[name]) for name in asdict(Effect())}), frozenset()
    layers, reused, _ = image_build.make_layers(draft, environment, foreign=foreign)
    blobs = {spec: layer.blob for spec, layer in zip(draft.layers, layers, strict=True)}
    scheme = Scheme.of(locked.python)
    names = {wheel.name for wheel in project.wheels} | set(project.removed)
    installed: dict[str, Files] = {}
    replaced: dict[str, Files] = {}
    for spec in parent.plan.of(WheelLayer):
        exact = any(wheel.name in names for wheel in spec.wheels)  # with byte-code
        found = _installed(spec, blobs[spec], store, scheme, exact=exact)
        replaced |= {name: files for name, files in found.items() if name in names}
        installed |= {name: files for name, files in found.items() if name not in names}
    added: dict[str, Files] = {}
    for spec in draft.of(WheelLayer)[len(parent.plan.of(WheelLayer)) :]:
        added |= _installed(spec, blobs[spec], store, scheme, exact=False)
    for note in require_distinct(project.wheels, store, scheme, {}):
        environment.say(f"warning: {note}")
    effect = effect_of(installed, replaced, added, fixed_wheels(locked.wheels).keys(), scheme)
    store.put_record(_RECORDS, key, asdict(effect))
    return effect, frozenset(layer.title for layer in layers) - set(reused)


def _installed(
    spec: WheelLayer, blob: Blob, store: Store, scheme: Scheme, *, exact: bool
) -> Mapping[str, Files]:
    """The files of the packages in the layer *spec*.

    :param exact: with byte-code, from the layer; otherwise from the wheels, if the store has all: that is
        faster.
    """
    if exact or not all(map(store.has_wheel, spec.wheels)):
        return files_in_layer(store.blob(blob.digest), scheme)
    return {wheel.name: files_of_wheel(store.wheel(wheel), wheel, scheme) for wheel in spec.wheels}
