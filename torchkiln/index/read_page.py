"""Selects the files on a project page whose names and links are safe, and adds wheels of no index. Pure.

The page is not trusted. Files are identified by hash, so a page cannot replace a file. Links to local files,
links from https to http, and file names that are paths are refused.

If there is a wheel that no index has, the index's files of its version are left out. So the resolver reads
METADATA of the wheel that is locked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version

from torchkiln.errors import BuildFailed
from torchkiln.index.listing import ListedFile, Page, listing
from torchkiln.index.settings import redact
from torchkiln.model.index import FileAt, LocalWheel
from torchkiln.util.http.redirects import unsafe
from torchkiln.util.wheel_names import parse_wheel_filename

_HINT = "the index, or a proxy in front of it, is at fault; use another index"
_NAME = re.compile(r"[A-Za-z0-9_.+!-]{1,250}")


def found_on(page: Page, name: str, hashes: Collection[str]) -> tuple[FileAt, ...]:
    """The files on the *page* of project *name* with one of *hashes*.

    :raises BuildFailed: *page* is not a project page, or one of these files has an unsafe name or link.
    """
    files = [file for file in listing(page, hashes) if file.sha256 and file.sha256 in hashes]
    found, refused = _safe(files, name)
    for sha256 in refused.keys() - {file.sha256 for file in found}:
        raise BuildFailed(f"{redact(page.url)}: {refused[sha256]}", hint=_HINT)
    return found


def wheels_on(page: Page, name: str) -> tuple[FileAt, ...]:
    """The wheels on the *page* of project *name* with a hash and a safe name and link that are not yanked.

    :raises BuildFailed: *page* is not a project page.
    """
    wheels = (file for file in listing(page) if file.filename.endswith(".whl"))
    return _safe((file for file in wheels if file.sha256 and file.yanked is None), name)[0]


def _safe(files: Iterable[ListedFile], name: str) -> tuple[tuple[FileAt, ...], Mapping[str, str]]:
    """The *files* with a safe name and link; and sha256 → reason for each file that is refused."""
    found, refused = [], {}
    for file in files:
        if why := unfit(file.filename, name):
            refused[file.sha256] = why
            continue
        try:
            found.append(located(file))
        except BuildFailed as error:
            refused[file.sha256] = error.message
    return tuple(found), refused


def located(file: ListedFile) -> FileAt:
    """*file* with its absolute URL.

    :raises BuildFailed: the link is unsafe.
    """
    url = file.url
    if why := unsafe(url, file.base):
        raise BuildFailed(f"unsafe link to {file.filename}: {why}", hint=_HINT)
    return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256, yanked=file.yanked)


def release_files(
    files: Collection[ListedFile], name: str
) -> tuple[tuple[ListedFile, ...], Mapping[str, str]]:
    """The *files* that a resolver may choose from: of project *name*, with a sha256, each name once.

    The second value has the files that are left out: file name → the reason.

    :raises BuildFailed: two files have the same name and different hashes.
    """
    found: dict[str, ListedFile] = {}
    left_out: dict[str, str] = {}
    for file in files:
        if not file.filename.endswith((".whl", ".tar.gz", ".zip")):
            continue
        if why := unfit(file.filename, name):
            left_out[file.filename[:100]] = why
        elif not file.sha256:
            left_out[file.filename] = "the index has no sha256 for it"
        elif found.setdefault(file.filename, file).sha256 != file.sha256:
            raise BuildFailed(
                f"{file.filename}: the page of {name} lists it twice, with different sha256",
                hint="the index is at fault; use another one",
            )
    return tuple(found.values()), left_out


def unfit(filename: str, name: str) -> str:
    """Why a file of project *name* cannot be called *filename*; "" if it can."""
    shown = filename[:100]
    if not _NAME.fullmatch(filename):
        return f"invalid file name: {shown!r}"
    if filename.endswith(".whl"):
        try:
            project = parse_wheel_filename(filename)[0]
        except InvalidWheelFilename:
            return f"invalid wheel filename: {shown}"
        if project != canonicalize_name(name):
            return f"{shown} is not a file of {name}"
    return ""


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
