"""Locks wheels: resolves requirements with uv, and chooses one wheel of each package and finds its size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version

from torchkiln.errors import BuildFailed, Unresolvable
from torchkiln.index.choose import choose, newest_of, tags_of
from torchkiln.index.listing import ListedFile
from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages, path_of
from torchkiln.index.read_page import excludes_index, merged, of_project, wheels_on
from torchkiln.index.remote_wheel import file_in
from torchkiln.index.session import WORKERS
from torchkiln.index.settings import index_settings
from torchkiln.index.uv import Pin, compile_pins
from torchkiln.model.cell import Source
from torchkiln.model.device_code import NVIDIA
from torchkiln.model.index import FileAt, IndexRequest, KnownWheel, LocalWheel, WheelMetadata, read_metadata
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.wheel_names import parse_wheel_filename

_SMALL = "pip"  # a project whose page is small


class PackageIndex:
    """The configured indexes, for a lock and for a build."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.yanked: dict[
            tuple[str, str], str
        ] = {}  # (project, version) of yanked locked wheels → the reason

    def demand_reachable(self, indexes: Iterable[Source]) -> None:
        """Request the page of a small project from each of *indexes*; 404 is not an error.

        :raises BuildFailed: an index cannot be reached.
        """
        for index in indexes:
            self.pages.settings.url(index)  # Unresolvable: it is not configured
            with suppress(Unresolvable), self.pages.page(_SMALL, index, fresh=True):
                pass

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        """The wheels for *wanted*, sorted by name, with their sizes; the size of `wanted.known` wheels is 0.

        :raises Unresolvable: the requirements conflict, or an index is not configured or lacks a project.
        :raises BuildFailed: an index is unavailable or at fault.
        """
        known = (_unlisted(wheel, Source.PYTORCH, 0) for wheel in wanted.known)
        return (*self.locked(self.pins(wanted), wanted), *known)

    def locked(self, pins: Iterable[Pin], wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        """The wheels of *pins*, with their sizes; *pins* are some of `self.pins(wanted)`.

        :raises Unresolvable: a release has no wheel for the image.
        :raises BuildFailed: an index is unavailable or at fault.
        """
        metadata, tags = Metadata(self.pages), tags_of(wanted.python, wanted.glibc, wanted.platform)
        linked = (NVIDIA,) if wanted.image else ()

        def wheel_of(pin: Pin) -> LockedWheel:
            for own in of_project(wanted.local, pin.name):
                if own.sha256 in pin.hashes:
                    return _unlisted(own, Source.PROJECT, own.size)
            files = self.pages.files(pin.name, pin.index, pin.hashes)
            file = self.pages.measure(choose(f"{pin.name} {pin.version}", files, pin.hashes, tags))
            if not file.size:
                raise BuildFailed(f"{file.filename}: the file on the index is empty")
            if file.yanked is not None:
                self.yanked[pin.name, pin.version] = file.yanked
            return LockedWheel(
                name=pin.name,
                version=pin.version,
                filename=file.filename,
                sha256=file.sha256,
                size=file.size,
                index=pin.index,
                libraries=metadata.libraries(file, pin.index) if pin.name.startswith(linked) else (),
                path=path_of(file.url) if wanted.image else None,
            )

        with ThreadPoolExecutor(WORKERS) as pool:
            return tuple(pool.map(wheel_of, pins))

    def newest(self, name: str, wanted: IndexRequest, allowed: SpecifierSet, *, sdist: bool = False) -> str:
        """The newest of the *allowed* final releases of *name* that fit the date and the Python of *wanted*.

        :param sdist: it has an sdist, instead of a wheel for the image.
        :return: the version; "" if there is none.
        :raises Unresolvable: the index does not have the project.
        :raises BuildFailed: the page cannot be read.
        """
        local = of_project(wanted.local, name)
        files: tuple[ListedFile, ...] = ()
        if not excludes_index(local):
            with suppress(Unresolvable) if local else nullcontext():
                files, _ = self.pages.uploaded_before(wanted.as_of, name, Source.DEFAULT)
        tags = None if sdist else tags_of(wanted.python, wanted.glibc, wanted.platform)
        return newest_of(merged(files, local), allowed, wanted.python, tags)

    def pins(self, wanted: IndexRequest) -> tuple[Pin, ...]:
        """uv's pins, with torch's dependencies from PyTorch's index bound to that index.

        :raises Unresolvable: the requirements conflict, or an index is not configured or lacks a project.
        :raises BuildFailed: an index is unavailable or at fault.
        """
        while True:
            pins = compile_pins(wanted, self.pages)
            # uv binds only direct requirements to an index; triton is a dependency of torch.
            direct = {canonicalize_name(Requirement(text).name) for text in wanted.requirements}
            implied = tuple(pin.name for pin in pins if pin.name in wanted.bound and pin.name not in direct)
            if not implied:
                return pins
            wanted = replace(wanted, requirements=(*wanted.requirements, *implied))


def _unlisted(wheel: KnownWheel | LocalWheel, index: Source, size: int) -> LockedWheel:
    """*wheel*, for which no page of an index is read."""
    return LockedWheel(
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        sha256=wheel.sha256,
        size=size,
        index=index,
    )


def open_index(environ: Mapping[str, str], store: Store) -> PackageIndex:
    """The indexes of the user's settings."""
    return PackageIndex(Pages(index_settings(environ), store))


class Releases:
    """The default index; each page is read once."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._projects: dict[str, dict[Version, list[FileAt]]] = {}

    def versions(self, project: str) -> tuple[str, ...]:
        """The final releases of *project* that have wheels, oldest first.

        :raises Unresolvable: the index does not have the project.
        :raises BuildFailed: the page cannot be read.
        """
        return tuple(str(version) for version in sorted(self._releases(project)) if not version.is_prerelease)

    def wheels(self, project: str, version: str) -> tuple[FileAt, ...]:
        """The wheels of a release; empty if the index does not have the release."""
        return tuple(self._releases(project).get(Version(version), ()))

    def metadata(self, wheel: FileAt) -> WheelMetadata:
        """METADATA of *wheel*.

        :raises BuildFailed: METADATA cannot be read.
        """
        return read_metadata(Metadata(self.pages).of(wheel, Source.DEFAULT))

    def file(self, wheel: FileAt, path: str, limit: int) -> bytes | None:
        """The file at *path* in *wheel*, of at most *limit* bytes; None: there is none.

        :raises BuildFailed: the file cannot be read, or is larger.
        """
        return file_in(self.pages.session, wheel, re.compile(re.escape(path)), limit)

    def _releases(self, project: str) -> dict[Version, list[FileAt]]:
        if project not in self._projects:
            found: dict[Version, list[FileAt]] = {}
            with self.pages.page(project, Source.DEFAULT, fresh=True) as page:
                wheels = wheels_on(page, project)
            for wheel in wheels:
                try:
                    version = parse_wheel_filename(wheel.filename)[1]
                except InvalidWheelFilename:
                    continue
                found.setdefault(version, []).append(wheel)
            self._projects[project] = found
        return self._projects[project]


def open_offered(environ: Mapping[str, str], store: Store) -> Releases:
    """The default index of the user's settings."""
    return Releases(Pages(index_settings(environ), store))
