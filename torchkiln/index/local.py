"""Merges wheels that no index has with the files of an index. Pure.

A version for which there is such a wheel is taken from these wheels alone, so that the METADATA that a
resolver reads are those of the wheel that is locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchkiln.index.listing import ListedFile
from torchkiln.model.index import LocalWheel


def of_project(local: Iterable[LocalWheel], name: str) -> tuple[LocalWheel, ...]:
    """Those of *local* that are of project *name*; if one of them excludes other files, only such ones."""
    found = tuple(wheel for wheel in local if wheel.name == name)
    return tuple(wheel for wheel in found if wheel.only) or found


def excludes_index(local: Iterable[LocalWheel]) -> bool:
    """Whether no file of an index may be chosen beside *local*, the wheels of one project."""
    return any(wheel.only for wheel in local)


def merged(files: Collection[ListedFile], local: Collection[LocalWheel]) -> tuple[ListedFile, ...]:
    """*files* of an index, without wheels of the versions of *local*, and *local*; all of one project."""
    versions = {Version(wheel.version) for wheel in local}
    kept = (file for file in files if not local or _version(file.filename) not in versions)
    return (*kept, *map(listed, local))


def listed(wheel: LocalWheel) -> ListedFile:
    """*wheel*, which fits the image, as a page lists it: with tags that fit every platform."""
    return ListedFile(
        filename=f"{wheel.name.replace('-', '_')}-{wheel.version}-py3-none-any.whl",
        href="",
        sha256=wheel.sha256,
        size=wheel.size,
        requires_python=wheel.requires_python,
        metadata="",
    )


def _version(filename: str) -> Version | None:
    try:
        return parse_wheel_filename(filename)[1]
    except InvalidWheelFilename:
        return None
