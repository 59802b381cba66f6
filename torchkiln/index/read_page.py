"""A project page → those of its files that may be followed. Somebody else wrote it: it is not believed.

A file is wanted by its hash, so a page cannot give another one. What it could do is send us somewhere: to a
file of this machine, out of https, to a name that is a path. Such a link is refused with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from torchkiln.errors import BuildFailed
from torchkiln.index.listing import Listed, Page, listing
from torchkiln.index.settings import redact
from torchkiln.model.index import FileAt
from torchkiln.util.http.redirects import unsafe

_NAME = re.compile(r"[A-Za-z0-9_.+!-]{1,250}")


def found_on(page: Page, name: str, hashes: Collection[str]) -> tuple[FileAt, ...]:
    """The files on the *page* of project *name* with one of *hashes*.

    :raises BuildFailed: it is not a project page, or gives such a file a name or an address that no file of
        the project can have.
    """
    told = listing(page, hashes)
    found, refused = [], {}
    for file in told.files:
        if file.sha256 not in hashes or not file.sha256:
            continue
        url = told.url(file)
        if why := unfit(file.filename, name) or _astray(file, url, page):
            refused[file.sha256] = why
            continue
        found.append(
            FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256, yanked=file.yanked)
        )
    for sha256 in refused.keys() - {file.sha256 for file in found}:
        raise BuildFailed(
            f"{redact(page.url)}: {refused[sha256]}",
            hint="the index, or something on the way to it, is at fault; try another one",
        )
    return tuple(found)


def wheels_on(page: Page, name: str) -> tuple[FileAt, ...]:
    """Every wheel on the *page* of project *name* that has a hash and was not yanked.

    A file that `found_on` would refuse is left out: nobody asked for it yet.

    :raises BuildFailed: it is not a project page.
    """
    told = listing(page)
    found = []
    for file in told.files:
        if not file.filename.endswith(".whl") or file.yanked is not None or not file.sha256:
            continue
        url = told.url(file)
        if unfit(file.filename, name) or _astray(file, url, page):
            continue
        found.append(FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256))
    return tuple(found)


def same_name(page: Page, filename: str) -> str:
    """The sha256 that *page* gives for the file *filename*; "" where it has none."""
    return next((file.sha256 for file in listing(page).files if file.filename == filename), "")


def release_files(files: Collection[Listed], name: str) -> tuple[tuple[Listed, ...], Mapping[str, str]]:
    """Those of *files* that a resolver may choose from: of project *name*, with a sha256, each name once.

    Also why others are left out, by file name.

    :raises BuildFailed: two files have one name and different hashes.
    """
    found: dict[str, Listed] = {}
    left_out: dict[str, str] = {}
    for file in files:
        if not file.filename.endswith((".whl", ".tar.gz", ".zip")):
            continue
        if why := unfit(file.filename, name):
            left_out[file.filename[:100]] = why
        elif not file.sha256:
            left_out[file.filename] = "the index gives no sha256 of it"
        elif found.setdefault(file.filename, file).sha256 != file.sha256:
            raise BuildFailed(
                f"{file.filename}: the page of {name} lists it twice, with different sha256",
                hint="the index is at fault; try another one",
            )
    return tuple(found.values()), left_out


def unfit(filename: str, name: str) -> str:
    """Why *filename* cannot be that of a file of project *name*; "" where it can."""
    shown = filename[:100]
    if not _NAME.fullmatch(filename):
        return f"{shown!r} is not the name of a file"
    if filename.endswith(".whl"):
        try:
            project = parse_wheel_filename(filename)[0]
        except InvalidWheelFilename:
            return f"{shown} is not the name of a wheel"
        if project != canonicalize_name(name):
            return f"{shown} is not a file of {name}"
    return ""


def _astray(file: Listed, url: str, page: Page) -> str:
    why = unsafe(url, page.url)
    return f"the address of {file.filename} is not followed: {why}" if why else ""
