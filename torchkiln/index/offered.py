"""Lists the releases on the default index, their wheels and METADATA."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.utils import InvalidWheelFilename
from packaging.version import Version

from torchkiln.index.metadata import Metadata
from torchkiln.index.pages import Pages
from torchkiln.index.read_page import wheels_on
from torchkiln.index.remote_wheel import file_in
from torchkiln.index.settings import index_settings
from torchkiln.model.cell import Source
from torchkiln.model.index import FileAt, WheelMetadata, read_metadata
from torchkiln.store.store import Store
from torchkiln.util.wheel_names import parse_wheel_filename


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
