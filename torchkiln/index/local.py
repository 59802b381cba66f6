"""Merges wheels that no index has with the files of an index. Pure.

If there is such a wheel of a version, the index's files of that version are left out. So the resolver reads
METADATA of the wheel that is locked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version

from torchkiln.index.listing import ListedFile
from torchkiln.model.index import LocalWheel
from torchkiln.util.wheel_names import parse_wheel_filename

_REQUIRES = re.compile(rb"^(Requires-Dist:[ \t]*)([^\r\n]+)", re.IGNORECASE | re.MULTILINE)


def of_project(local: Iterable[LocalWheel], name: str) -> tuple[LocalWheel, ...]:
    """The wheels of project *name* in *local*; if some of these have `only`, no others."""
    found = tuple(wheel for wheel in local if wheel.name == name)
    return tuple(wheel for wheel in found if wheel.only) or found


def excludes_index(local: Iterable[LocalWheel]) -> bool:
    """Whether no file of an index may be chosen beside *local*, the wheels of one project."""
    return any(wheel.only for wheel in local)


def merged(files: Collection[ListedFile], local: Collection[LocalWheel]) -> tuple[ListedFile, ...]:
    """The *files* of an index whose versions are not in *local*, then *local*; all of one project."""
    versions = {Version(wheel.version) for wheel in local}
    kept = (file for file in files if not local or _version(file.filename) not in versions)
    return (*kept, *map(listed, local))


def listed(wheel: LocalWheel) -> ListedFile:
    """*wheel* as an entry of a page, named py3-none-any: uv need not check that it fits the image."""
    return ListedFile(
        filename=f"{wheel.name.replace('-', '_')}-{wheel.version}-py3-none-any.whl",
        href="",
        base="",
        sha256=wheel.sha256,
        size=wheel.size,
        requires_python=wheel.requires_python,
    )


def _version(filename: str) -> Version | None:
    try:
        return parse_wheel_filename(filename)[1]
    except InvalidWheelFilename:
        return None


def required_by_name(local: Iterable[LocalWheel]) -> tuple[LocalWheel, ...]:
    """*local*, with METADATA that requires wheels with `only` by name, not by URL.

    A package may require another by URL (`NAME @ git+https://…`); uv accepts URLs only from the project.
    """
    found = tuple(local)
    names = frozenset(wheel.name for wheel in found if wheel.only)

    def changed(wheel: LocalWheel) -> LocalWheel:
        return replace(wheel, metadata=lambda: _by_name(wheel.metadata(), names))

    return tuple(map(changed, found)) if names else found


def _by_name(metadata: bytes, names: Collection[str]) -> bytes:
    """*metadata* without the URLs of the packages *names* in its requirements."""
    head, separator, rest = metadata.partition(b"\n\n")

    def line(found: re.Match[bytes]) -> bytes:
        try:
            requirement = Requirement(found[2].decode())
        except (InvalidRequirement, UnicodeDecodeError):
            return found[0]
        if not requirement.url or canonicalize_name(requirement.name) not in names:
            return found[0]
        requirement.url = None
        return found[1] + str(requirement).encode()

    return _REQUIRES.sub(line, head) + separator + rest
