"""The public functions. Each does what a command does, and prints nothing.

Only these functions and the classes that they take and return are stable between releases. Imports are local
to the functions because every command imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import ConfigError
from torchkiln.model.layer import DEFAULT_FORMAT, LayerFormat
from torchkiln.util.files import named
from torchkiln.util.ownership import fault

if TYPE_CHECKING:
    from torchkiln.attest.keys import KeyInRole
    from torchkiln.errors import KilnError
    from torchkiln.locks.folder import LockFolder
    from torchkiln.locks.session import LockResult
    from torchkiln.model.cell import Cell, Resolution
    from torchkiln.model.layer import BuiltImage
    from torchkiln.model.lock import LockedCell
    from torchkiln.model.progress import Reporting
    from torchkiln.publishing.publish import PublishedImage
    from torchkiln.publishing.verification import Verified
    from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class CellName:
    """The name of a cell of the matrix; the options of the command line have the same names and values.

    `torch` and `cuda` may be prefixes: "2.7" is the newest 2.7 release. `gpus` are the GPUs of a thin image,
    for example "9.0" or "H100". With `own_use`, NVIDIA's libraries are cut, too; their licence may allow this
    for your own use only.
    """

    torch: str
    cuda: str
    flavor: str = "runtime"
    os: str = "debian12"
    gpus: tuple[str, ...] = ()
    own_use: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The files that the functions use, and the function that receives diagnostics."""

    matrix: Path = Path("matrix.yaml")  # `publish` and `verify` use its policy and its keys
    images: Path = Path("images")  # the folder of locks
    layout: Path = Path("dist")  # the OCI layout
    suite: Path | None = None  # the folder of smoke tests that reports must come from; None: torchkiln's own
    cache: Path | None = None  # None: $TORCHKILN_CACHE, else the user's cache folder
    say: Callable[[str], None] = lambda _: None  # receives each line of diagnostics

    def __post_init__(self) -> None:
        for each in fields(self):  # a default is in the current folder, which may be that of a stranger
            value = getattr(self, each.name)
            if isinstance(value, Path) and value != each.default and not fault(value):
                object.__setattr__(self, each.name, named(value))


def explain(cell: CellName, project: Project = Project()) -> Resolution:
    """The resolution of *cell*: the build of torch, the drivers, the limits; or why it is unavailable.

    :raises ConfigError: the matrix is invalid, or does not have the cell.
    """
    folder = _folder(project)
    return folder.resolution(_cell(cell, folder))


def lock(
    cell: CellName, project: Project = Project(), *, as_of: str | None = None, upgrade: tuple[str, ...] = ()
) -> LockedCell:
    """Lock *cell*, and write `lock.json` and `requirements.txt` below `project.images`.

    :param as_of: an ISO date; files uploaded on that day or later are ignored. None is today.
    :param upgrade: packages that may get a different version than in the current lock; "*" is all packages.
    :raises Unresolvable: the cell is unavailable, or its requirements conflict.
    :raises ConfigError: the matrix, a setting of an index, or *upgrade* is invalid.
    """
    from torchkiln.engine.standalone import StandalonePythons
    from torchkiln.locks.session import LockRequest, LockSession

    folder, store = _folder(project), _store(project)
    session = LockSession(
        folder,
        LockRequest(as_of=as_of, upgrade=upgrade),
        store,
        environ=os.environ,
        observer=_LockObserver(project.say),
        pythons=StandalonePythons(store=store, environ=os.environ, locate=folder.matrix.locate),
    )
    return session.lock(_cell(cell, folder)).lock


def build(
    cell: CellName,
    project: Project = Project(),
    *,
    layer_format: LayerFormat = DEFAULT_FORMAT,
    locked_only: bool = False,
) -> BuiltImage:
    """Build the image of *cell* from its lock into the OCI layout `project.layout`; no test runs in it.

    :param locked_only: refuse a base or tools that do not match the lock.
    :raises ConfigError: the matrix is invalid, or other users can change the layout.
    :raises Stale: there is no lock, or the matrix or the facts changed after it was made.
    :raises BuildFailed: a wheel, the base or the tools are not available as locked.
    """
    from torchkiln.engine import build as engine
    from torchkiln.engine.environment import open_environment
    from torchkiln.engine.prerequisites import BaseSources
    from torchkiln.model.progress import Silent
    from torchkiln.oci.owned import demand_own_layout

    demand_own_layout(project.layout)
    folder, store = _folder(project), _store(project)
    locked = folder.fresh(_cell(cell, folder), os.environ)
    folder.keep(locked)
    environment = open_environment(store, observer=Silent(), say=project.say)
    sources = BaseSources(images=project.images, locked_only=locked_only)
    options = engine.BuildOptions(sources=sources, layer_format=layer_format)
    layout = project.layout.absolute()
    return engine.build(locked, folder.matrix, folder.facts, layout, environment, options=options).image


def build_project(
    folder: Path,
    cell: CellName | None = None,
    project: Project = Project(),
    *,
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
    layer_format: LayerFormat = DEFAULT_FORMAT,
) -> BuiltImage:
    """Build the image of the user's project in *folder* on the image of a cell, its parent image.

    Writes both images into `project.layout`, and the project's lock into *folder* if there is none.

    :param cell: None is the cell of the project's lock.
    :param extras: the project's extras to install.
    :param groups: the project's dependency groups to install. Without extras and groups, those of the
        project's lock are installed.
    :raises ConfigError: a file of the project is invalid, its code cannot be in an image, or *cell* is
        missing.
    :raises Stale: a lock is outdated.
    :raises Unresolvable: the project's requirements conflict with the parent image.
    :raises BuildFailed: a package is not available as locked, or would change the parent image.
    """
    from torchkiln.engine.build import BuildOptions
    from torchkiln.engine.environment import open_environment
    from torchkiln.engine.prerequisites import BaseSources
    from torchkiln.matrix.tags import cell_named
    from torchkiln.model.progress import Silent
    from torchkiln.oci.owned import demand_own_layout
    from torchkiln.projects import build as projects
    from torchkiln.projects.choice import choice_of
    from torchkiln.projects.file import FILE, load_project
    from torchkiln.projects.source import ProjectRequest

    demand_own_layout(project.layout)
    folder, locks, store = named(folder), _folder(project), _store(project)
    if cell is not None:
        parent = _cell(cell, locks)
    elif (present := load_project(folder)) is not None:
        parent = cell_named(present.parent, locks.matrix, locks.facts)
    else:
        raise ConfigError(
            f"{folder}: there is no {FILE}", hint="name the cell: CellName(torch=..., cuda=...)"
        )
    choice = choice_of(extras, groups) if extras or groups else None
    request = ProjectRequest(folder=folder, cell=parent, choice=choice)
    source = projects.source_of(
        request,
        locks,
        store,
        environ=os.environ,
        made=lambda _, path: project.say(f"there was no {FILE}: wrote {path}"),
    )
    locks.keep(source.cell)
    environment = open_environment(store, observer=Silent(), say=project.say)
    options = BuildOptions(sources=BaseSources(images=project.images), layer_format=layer_format)
    layout = project.layout.absolute()
    return projects.build_project(source, locks.matrix, locks.facts, layout, environment, options).built.image


def publish(
    image: str,
    repository: str,
    project: Project = Project(),
    *,
    reports: tuple[Path, ...] = (),
    laboratory_keys: tuple[Path, ...] = (),
    signing_key: Path | None = None,
    override: str | None = None,
    licence_confirmed: bool = False,
) -> PublishedImage:
    """Push *image*, a tag of `project.layout`, if its smoke reports satisfy the policy of the matrix.

    :param repository: "registry.example:5000/team/pytorch"; log in with `docker login`.
    :param reports: reports, or folders of them; empty: the runs of this machine.
    :param laboratory_keys: public keys; if there are any, a report counts only if one of them signed it.
    :param signing_key: signs the SBOM, the provenance, the reports and the gate's decision.
    :param override: the reason to publish although the policy is not satisfied; stored with the image.
    :param licence_confirmed: you have the right to distribute modified NVIDIA libraries; only an image
        that was built with `own_use` needs it.
    :raises GateRefused: the reports do not satisfy the policy, or *licence_confirmed* is missing.
    :raises VerificationFailed: an image or a report is damaged, or a signature is invalid.
    :raises RegistryError: the registry rejects a request, or cannot be reached.
    :raises ConfigError: there is no such image, or a file of *project* or a key is invalid.
    """
    from torchkiln.attest.keys import policy_keys, private_key
    from torchkiln.attest.signers import ByKey, Unsigned
    from torchkiln.gate.inputs import GateInputs
    from torchkiln.oci.owned import demand_own_layout
    from torchkiln.projects.kind import KINDS
    from torchkiln.publishing.session import PublishListener, PublishSession, PublishTarget
    from torchkiln.registry.reference import parse_repository
    from torchkiln.smoke.history import KeptRuns
    from torchkiln.smoke.suite import load_suite

    demand_own_layout(project.layout)
    folder, store = _folder(project), _store(project)
    policy = folder.matrix.policy
    inputs = GateInputs(
        policy=policy,
        suite=load_suite(project.suite),
        runs=KeptRuns(store=store),
        keys=policy_keys(policy, project.matrix, project.say),
        named=_named_keys(laboratory=laboratory_keys),
        given=reports,
    )
    inputs.demand_keys(project.matrix)
    if policy.signed and signing_key is None:
        raise ConfigError("the policy requires signatures", hint="pass a signing_key")
    session = PublishSession(
        layout=project.layout,
        images=project.images,
        matrix=folder.matrix,
        facts=folder.facts,
        store=store,
        inputs=inputs,
        signer=ByKey(private_key(signing_key)) if signing_key else Unsigned(),
        environ=os.environ,
        listener=PublishListener(say=project.say),
        kinds=KINDS,
    )
    target = PublishTarget(
        repository=parse_repository(repository),
        day=f"{datetime.now(timezone.utc):%Y%m%d}",
        override=override,
        licence_confirmed=licence_confirmed,
    )
    return session.publish(image, target)


def verify(
    reference: str,
    project: Project = Project(),
    *,
    publisher_keys: tuple[Path, ...] = (),
    laboratory_keys: tuple[Path, ...] = (),
    full: bool = False,
    rebuild: bool = False,
) -> Verified:
    """Verify the published image *reference*: signatures, lock, reports and SBOM.

    A fault of the image raises no error: `.points` has each finding, `.verified` is the result, and
    `.demand_good()` raises the error. Without a trusted key no signature is verified, and `.verified` is
    False.

    :param reference: "registry.example:5000/team/pytorch:TAG", or "...@sha256:...".
    :param publisher_keys: public keys whose signatures count, for all but reports, as do the policy's keys.
    :param laboratory_keys: public keys whose signatures of reports count.
    :param full: download the layers and verify every byte.
    :param rebuild: build the image from its lock and compare the digests; needs a trusted key.
    :raises RegistryError: the registry rejects a request, or cannot be reached.
    :raises ConfigError: there is no such image, or a file of *project* or a key is invalid.
    """
    from torchkiln.attest.keys import policy_keys
    from torchkiln.attest.signers import Trust
    from torchkiln.projects.kind import KINDS
    from torchkiln.publishing.verification import Depth, VerifySession
    from torchkiln.registry.reference import parse_reference
    from torchkiln.registry.session import open_registry
    from torchkiln.smoke.suite import load_suite

    target, depth, folder = parse_reference(reference), Depth(full=full, rebuild=rebuild), _folder(project)
    policy = folder.matrix.policy
    named = _named_keys(publisher=publisher_keys, laboratory=laboratory_keys)
    session = VerifySession(
        policy=policy,
        policy_matrix=folder.matrix,
        suite=load_suite(project.suite),
        trust=Trust(keys=(*policy_keys(policy, project.matrix, project.say), *named)),
        matrix=folder.matrix,
        facts=folder.facts,
        store=_store(project),
        kinds=KINDS,
        say=project.say,
    )
    depth.demand_trust(session.trust)
    with open_registry(target.repository, os.environ) as registry:
        return session.run(target, registry, depth)


@dataclass(frozen=True, slots=True)
class _LockObserver:
    """Passes on the messages of a lock session, and ignores its events, because `lock` returns the result."""

    say: Callable[[str], None]

    def reporting(self) -> AbstractContextManager[Reporting]:
        from torchkiln.model.progress import Reporting

        return nullcontext(Reporting(say=self.say))

    def locked(self, result: LockResult) -> None: ...

    def failed(self, tag: str, error: KilnError) -> None: ...


def _folder(project: Project) -> LockFolder:
    from torchkiln.locks.folder import LockFolder
    from torchkiln.matrix import facts, matrix

    known = facts.load(project.matrix)
    return LockFolder(project.images, matrix.read(project.matrix, known), known)


def _named_keys(**files: tuple[Path, ...]) -> tuple[KeyInRole, ...]:
    from torchkiln.attest.keys import NamedKey, public_keys
    from torchkiln.model.report import ROLES

    pairs = ((ROLES[role], path) for role, paths in files.items() for path in paths)
    return tuple(public_keys([NamedKey(path=path, roles=roles) for roles, path in pairs]))


def _cell(name: CellName, folder: LockFolder) -> Cell:
    """:raises ConfigError: the matrix does not have the cell, or has several that match."""
    from torchkiln.matrix.pick import kept_gpus
    from torchkiln.matrix.select import Selection, select

    if name.own_use and not name.gpus:
        raise ConfigError(f"{name}: own_use requires gpus", hint='name the GPUs of the image: gpus=("9.0",)')
    cells = select(
        Selection(
            torch=(name.torch,),
            cuda=(name.cuda,),
            flavor=(name.flavor,),
            os=(name.os,),
            gpus=kept_gpus(name.gpus, folder.facts) if name.gpus else (),
            own_use=name.own_use,
        ),
        folder.matrix,
    )
    if len(cells) != 1:
        raise ConfigError(
            f"{name} matches {len(cells)} cells", hint="name one torch release and one CUDA version"
        )
    return cells[0]


def _store(project: Project) -> Store:
    from torchkiln.store.store import Store, cache_root

    return Store(project.cache or cache_root())
