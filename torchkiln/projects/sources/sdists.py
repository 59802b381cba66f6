"""Offers sdists to the resolver as if they were wheels, and builds those whose METADATA it needs.

A commit of a git repository is built before the resolver runs, because only its wheel states its version.

Only packages that the setting `build` of the project names are built, because a build runs their code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from torchkiln.errors import BuildFailed, ConfigError, Unresolvable
from torchkiln.index.download import Downloads
from torchkiln.index.listing import ListedFile
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.read_page import release_files
from torchkiln.model.cell import Source
from torchkiln.model.index import IndexRequest, LocalWheel, read_metadata
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.model.project import BuiltFrom, GitCommit, Origin, ProjectLock
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.util.wheel_names import parse_wheel_filename

MOST = 20  # builds of one lock
_SUFFIX = ".tar.gz"

#: Resolves and downloads what a build requires (PEP 508): see `Sdists.required`.
Resolve = Callable[[tuple[str, ...]], tuple[LockedWheel, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceCode:
    """What a wheel is built from: an sdist, or the archive of a commit, in the cache."""

    archive: LockedWheel  # its version is "" if only the wheel states it
    folder: str = "."  # the package's folder, below the archive's only top-level folder


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltSdist:
    """A wheel that was built from source code and is in the cache, with its METADATA."""

    wheel: LockedWheel
    metadata: bytes = field(repr=False)
    requires: tuple[LockedWheel, ...]  # the wheels that the build used


class SdistBuilder(Protocol):
    """Builds sdists in a sandbox."""

    def build(self, code: SourceCode, cell: LockedCell, resolve: Resolve) -> BuiltSdist:
        """The wheel of *code* for the image of *cell*.

        :raises BuildFailed: the build fails, exceeds a limit, or does not make this wheel.
        :raises ToolMissing: this host has no sandbox.
        """
        ...

    def again(self, code: SourceCode, cell: LockedCell, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        """The wheel of *code*, built with the wheels *requires* of a lock; all these files are in the cache.

        :raises BuildFailed: as `build`.
        """
        ...


class Sdists:
    """The sdists of the packages *names* on the default index, for the image of *cell*; thread-safe.

    :param known: builds of the project's present lock by the sdist's sha256: their requirements are kept.
    """

    def __init__(
        self,
        index: PackageIndex,
        cell: LockedCell,
        builder: SdistBuilder,
        *,
        as_of: str,
        known: Mapping[str, BuiltFrom],
    ) -> None:
        self._index, self._cell, self._builder, self._as_of = index, cell, builder, as_of
        self._known = known
        self._listed: dict[str, SourceCode] = {}  # by sha256
        self._commits: dict[str, GitCommit] = {}  # by the sha256 of their archives
        self._built: dict[str, BuiltSdist] = {}
        self._building = threading.RLock()  # one build at a time: each may use gigabytes

    def local(
        self, names: Iterable[str], own: Collection[LocalWheel], tags: Collection[Tag]
    ) -> Iterator[LocalWheel]:
        """The sdists of the packages *names*, for versions without a fitting wheel on the index or in *own*.

        :param tags: the tags of wheels that the image accepts.
        :raises BuildFailed: a page of the index cannot be read.
        :raises ConfigError: *names* has packages that are fixed in the image.
        """
        there = {(wheel.name, Version(wheel.version)) for wheel in own}
        fixed = fixed_wheels(self._cell.wheels)
        if wrong := sorted(set(names) & fixed.keys()):
            raise ConfigError(
                f"build: {', '.join(wrong)}: fixed in the image", hint="remove it from the setting build"
            )
        for name in names:
            try:
                files, _ = self._index.pages.uploaded_before(self._as_of, name, Source.DEFAULT)
            except Unresolvable:
                continue  # the resolver reports the package if something requires it
            safe, _ = release_files(files, name)
            fitting = {version for file in safe for version in _fitting(file, tags)}
            for file in safe:
                version = _version(file, name)
                if version is None or version in fitting or (name, version) in there:
                    continue
                yield self._offered(name, version, file)

    def of_commit(self, code: SourceCode, commit: GitCommit) -> LocalWheel:
        """Build the wheel of *code*, an archive of *commit*; no other wheel of its package may be chosen.

        :raises BuildFailed: as `SdistBuilder.build`.
        """
        archive = code.archive
        self._listed[archive.sha256], self._commits[archive.sha256] = code, commit
        built = self._of(archive.sha256)
        return LocalWheel(
            name=archive.name,
            version=built.wheel.version,
            filename=built.wheel.filename,
            sha256=archive.sha256,
            size=archive.size,
            requires_python=read_metadata(built.metadata).requires_python,
            metadata=lambda: built.metadata,
            only=True,
        )

    def finish(self, lock: ProjectLock) -> ProjectLock:
        """*lock*, in which the wheels that were built replace their sdists."""
        origins = {origin.name: origin for origin in lock.origins}
        wheels = []
        for wheel in lock.wheels:
            if wheel.index is not Source.PROJECT or wheel.sha256 not in self._listed:
                wheels.append(wheel)
                continue
            built = self._of(wheel.sha256)
            wheels.append(built.wheel)
            origins[wheel.name] = Origin(
                name=wheel.name,
                git=self._commits.get(wheel.sha256),
                # Read after `_of`, which sets the size of an sdist if the index does not state it.
                built=self._from(self._listed[wheel.sha256], built),
            )
        return replace(lock, wheels=tuple(wheels), origins=tuple(origins[name] for name in sorted(origins)))

    def required(self, texts: tuple[str, ...]) -> tuple[LockedWheel, ...]:
        """The wheels of the packages that a build requires, and of their dependencies, in the cache.

        :raises BuildFailed: the requirements conflict, or one is fixed in the image, such as torch.
        """
        self._demand_free(canonicalize_name(Requirement(text).name) for text in texts)
        cell, pages = self._cell.resolution.cell, self._index.pages
        wanted = IndexRequest(
            requirements=texts,
            constraints=(),
            python=cell.python,
            glibc=operating_system(cell.os).glibc,
            as_of=self._as_of,
            keep=(),
            bound=(),
        )
        try:
            found = self._index.wheels(wanted) if texts else ()
        except Unresolvable as error:
            raise BuildFailed(f"its build requirements cannot be installed: {error.message}") from error
        self._demand_free(wheel.name for wheel in found)
        for wheel in found:
            Downloads(pages).fetch_wheel(wheel, pages.store)
        return found

    def _demand_free(self, names: Iterable[str]) -> None:
        """:raises BuildFailed: a build requires *names*, and some of these are fixed in the image."""
        if wrong := sorted(set(names) & fixed_wheels(self._cell.wheels).keys()):
            raise BuildFailed(
                f"its build requires {', '.join(wrong)}: only packages that are built without torch are"
                " supported",
                hint="build the wheel elsewhere, and put it into the folder of the setting `wheels`",
            )

    def _offered(self, name: str, version: Version, file: ListedFile) -> LocalWheel:
        sdist = LockedWheel(
            name=name,
            version=str(version),
            filename=file.filename,
            sha256=file.sha256,
            size=file.size or 0,
            index=Source.DEFAULT,
        )
        self._listed[file.sha256] = SourceCode(archive=sdist)
        return LocalWheel(
            name=name,
            version=str(version),
            filename=file.filename,
            sha256=file.sha256,
            size=file.size or 0,
            requires_python=file.requires_python,
            metadata=lambda: self._of(file.sha256).metadata,
        )

    def _of(self, sha256: str) -> BuiltSdist:
        """The wheel of the sdist with *sha256*, which the first call builds."""
        with self._building:
            if sha256 not in self._built:
                if len(self._built) >= MOST:
                    raise BuildFailed(
                        f"the requirements lead to more than {MOST} builds", hint="require exact versions"
                    )
                self._built[sha256] = self._build(sha256)
            return self._built[sha256]

    def _build(self, sha256: str) -> BuiltSdist:
        code, pages = self._listed[sha256], self._index.pages
        sdist = code.archive
        if not sdist.size:
            (at,) = (file for file in pages.files(sdist.name, sdist.index, {sha256}) if file.sha256 == sha256)
            sdist = replace(sdist, size=pages.measure(at).size or 0)
            code = self._listed[sha256] = SourceCode(archive=sdist)
        Downloads(pages).fetch_wheel(sdist, pages.store)
        known = self._known.get(sha256)
        return self._builder.build(code, self._cell, self.required if known is None else self._same_as(known))

    def _same_as(self, known: BuiltFrom) -> Resolve:
        """A `Resolve` that returns the build requirements of the previous lock, which give the same wheel."""

        def resolve(_: tuple[str, ...]) -> tuple[LockedWheel, ...]:
            for wheel in known.requires:
                Downloads(self._index.pages).fetch_wheel(wheel, self._index.pages.store)
            return known.requires

        return resolve

    def _from(self, code: SourceCode, built: BuiltSdist) -> BuiltFrom:
        second = self._builder.again(code, self._cell, built.requires).wheel
        return BuiltFrom(
            sdist=code.archive.filename,
            sha256=code.archive.sha256,
            size=code.archive.size,
            requires=tuple(sorted(built.requires, key=lambda wheel: wheel.name)),
            reproducible=second.sha256 == built.wheel.sha256,
        )


def _fitting(file: ListedFile, tags: Collection[Tag]) -> Iterator[Version]:
    """The version of *file* if it is a wheel with one of *tags*."""
    try:
        _, version, _, own = parse_wheel_filename(file.filename)
    except InvalidWheelFilename:
        return
    if not own.isdisjoint(tags):
        yield version


def _version(file: ListedFile, name: str) -> Version | None:
    """The version of *file* if it is an sdist of the project *name* that can be built."""
    if not file.filename.endswith(_SUFFIX) or file.yanked is not None:
        return None
    try:
        project, version = parse_sdist_filename(file.filename)
    except ValueError:
        return None
    return version if project == name else None
