"""A project page, HTML or JSON -> its files. Somebody else wrote it: it is bounded, and not believed.

A file is wanted by its hash, so a page cannot give another one. What it could do is send us somewhere: to a
file of this machine, out of https, to a name that is a path. Such a link is refused with a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pypi_simple import DistributionPackage, Link, ProjectPage, RepositoryPage, UnsupportedRepoVersionError

from torchkiln.errors import BuildFailed
from torchkiln.index.session import unsafe
from torchkiln.index.settings import redact
from torchkiln.released import FileAt
from torchkiln.strict import DEPTH, levels

_HEAD = 1 << 16  # bytes before the first link: <base> and the version of the page's form
_LINK = 1 << 14  # bytes of one link
_TWINS = 16  # links with one hash
_TAGS = 200_000  # of a page that is parsed whole; a file has two
_SIZE = 1 << 40  # bytes of one file
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIRST_LINK = re.compile(rb"<a[\s>]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page as it was served."""

    url: str  # after redirects: links are relative to it
    json: bool
    body: bytes


def found_on(page: Page, name: str, hashes: Collection[str]) -> tuple[FileAt, ...]:
    """The files on the *page* of project *name* with one of *hashes*.

    :raises BuildFailed: it is no page of a project, or gives such a file a name or an address that no file of
        the project can have.
    """
    found, refused = [], {}
    for file in _packages(page, name, hashes):
        sha256 = file.digests.get("sha256", "").lower()
        if sha256 not in hashes:
            continue
        if why := _unfit(file, page, name):
            refused[sha256] = why
            continue
        size = file.size if file.size is not None and 0 <= file.size <= _SIZE else None
        found.append(FileAt(filename=file.filename, url=file.url, size=size, sha256=sha256))
    for sha256 in refused.keys() - {file.sha256 for file in found}:
        raise BuildFailed(
            f"{redact(page.url)}: {refused[sha256]}",
            hint="the index is at fault, or somebody between; try another one",
        )
    return tuple(found)


def wheels_on(page: Page, name: str) -> tuple[FileAt, ...]:
    """Every wheel on the *page* of project *name* that has a hash and was not yanked.

    A file that `found_on` would refuse is not there: nobody asked for it yet.

    :raises BuildFailed: it is no page of a project.
    """
    files = (
        packages_of(page) if page.json else [DistributionPackage.from_link(a, name) for a in links_on(page)]
    )
    found = []
    for file in files:
        sha256 = file.digests.get("sha256", "").lower()
        if not file.filename.endswith(".whl") or file.is_yanked or not _SHA256.fullmatch(sha256):
            continue
        if _unfit(file, page, name):
            continue
        size = file.size if file.size is not None and 0 <= file.size <= _SIZE else None
        found.append(FileAt(filename=file.filename, url=file.url, size=size, sha256=sha256))
    return tuple(found)


def links_on(page: Page) -> list[Link]:
    """Every link of an HTML *page*.

    :raises BuildFailed: it is no page of a simple index.
    """
    if page.body.count(b"<") > _TAGS:
        raise _no_page(page)
    try:
        return RepositoryPage.from_html(page.body, page.url).links
    except _ODD as error:
        raise _no_page(page) from error


def packages_of(page: Page) -> list[DistributionPackage]:
    """Every file of a JSON *page*.

    :raises BuildFailed: it is no page of a simple index.
    """
    try:
        if levels(page.body.decode()) > DEPTH:
            raise _no_page(page)
        return ProjectPage.from_json_data(json.loads(page.body), page.url).packages
    except _ODD as error:
        raise _no_page(page) from error


# What the library lets through of a page that is none, beside what it says.
_ODD = (ValueError, KeyError, TypeError, AttributeError, RecursionError, UnsupportedRepoVersionError)


def _no_page(page: Page) -> BuildFailed:
    return BuildFailed(
        f"{redact(page.url)}: not a project page of a simple index", hint="look at the index address"
    )


def _packages(page: Page, name: str, hashes: Collection[str]) -> list[DistributionPackage]:
    if page.json:
        return packages_of(page)
    try:
        return ProjectPage.from_html(name, _narrow(page.body, hashes), page.url).packages
    except _ODD as error:
        raise _no_page(page) from error


def _unfit(file: DistributionPackage, page: Page, name: str) -> str:
    """Why a file that has a wanted hash cannot be what was wanted."""
    shown = file.filename[:100]
    if not re.fullmatch(r"[A-Za-z0-9_.+!-]{1,250}", file.filename):
        return f"{shown!r} is not the name of a file"
    if file.filename.endswith(".whl"):
        try:
            project = parse_wheel_filename(file.filename)[0]
        except InvalidWheelFilename:
            return f"{shown} is not the name of a wheel"
        if project != canonicalize_name(name):
            return f"{shown} is no file of {name}, and has the hash of one"
    if why := unsafe(file.url, page.url):
        return f"the address of {shown} is not followed: {why}"
    return ""


def _narrow(body: bytes, hashes: Collection[str]) -> bytes:
    """The head of *body* and its links that name one of *hashes*: to parse all costs half a second a page."""
    lower = body.lower()
    first = _FIRST_LINK.search(lower, 0, _HEAD)
    links = [body[: first.start() if first else _HEAD]]
    for digest in hashes:
        links += (body[start:end] + b"</a>" for start, end in _spans(lower, digest.encode()))
    return b"\n".join(dict.fromkeys(links))


def _spans(lower: bytes, digest: bytes) -> Iterator[tuple[int, int]]:
    """Where the links that name *digest* stand."""
    at = -1
    for _ in range(_TWINS):
        if (at := lower.find(digest, at + 1)) < 0:
            return
        start = lower.rfind(b"<a", max(0, at - _LINK), at)
        end = lower.find(b"</a", at, at + _LINK)
        if start >= 0 and end >= 0:
            yield start, end
