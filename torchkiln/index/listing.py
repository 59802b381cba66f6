"""A project page, HTML or JSON (PEP 503, 691, 700, 714) → the files it lists. Pure; somebody else wrote it.

A page can have ten megabytes and tens of thousands of links, and a lock reads hundreds of pages, so the HTML
is not parsed into a tree: each link is matched where it stands. Nothing here judges names or addresses.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

from torchkiln.errors import BuildFailed
from torchkiln.index.settings import redact
from torchkiln.util.strict_json import DEPTH, levels

MOST_FILES = 50_000  # of one page; the largest that is known has a third of that
_PIECES = 1_000_000  # values of a JSON page: each takes a hundred bytes of memory
_HEAD = 1 << 16  # bytes before the first link: <base> and the version of the page's form
_LINK = 1 << 14  # bytes of one link
_SIZE = 1 << 40  # bytes of one file
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_START = re.compile(rb"<[aA](?=[\s>])")
_HIDDEN = re.compile(rb"<!--.*?-->|<(script|style|template)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_ATTRIBUTE = rb"""\s+([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+)))?"""
_ONE = re.compile(_ATTRIBUTE)
_TAG = re.compile(rb"<[a-zA-Z]+((?:" + _ATTRIBUTE + rb")*)\s*/?>")
_TEXT = re.compile(rb"([^<]*)</[aA]\s*>")
_BASE = re.compile(rb"<base(?=\s)", re.IGNORECASE)
_META = re.compile(rb"<meta(?=\s)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page as it was served."""

    url: str  # after redirects: links are relative to it
    json: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One file as the page lists it."""

    filename: str
    href: str = field(repr=False)  # as it stands there
    sha256: str  # hex, lower case; "" where the page gives none
    size: int | None = None
    requires_python: str = ""
    uploaded: str = ""  # ISO 8601, unread
    yanked: str | None = None  # the reason, which may be empty; None: it is not
    metadata: str | None = None  # PEP 658: sha256 of the file beside it, or ""; None: there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The files of a page, and the address that their links are relative to."""

    base: str
    files: tuple[Listed, ...]

    def url(self, file: Listed) -> str:
        """The whole address of *file*; it may be none: see `session.unsafe`."""
        return url_of(self.base, file)


def url_of(base: str, file: Listed) -> str:
    """The address of *file*, relative to *base*; what is none stays as it is."""
    try:
        return urljoin(base, file.href).partition("#")[0]
    except ValueError:
        return file.href


def listing(page: Page, hashes: Collection[str] | None = None) -> Listing:
    """The files on *page*; of an HTML page only those that name one of *hashes*, where that is given.

    :raises BuildFailed: it is not a project page, or lists more files than any project has.
    """
    try:
        found = _of_json(page) if page.json else _of_html(page, hashes)
    except _Odd as error:
        raise not_a_page(page, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise not_a_page(page, "not readable JSON" if page.json else "not readable HTML") from error
    return found


def not_a_page(page: Page, why: str) -> BuildFailed:
    """The error for a *page* that is something else."""
    return BuildFailed(
        f"{redact(page.url)}: not a project page of a simple index: {why}", hint="check the index address"
    )


class _Odd(Exception):
    """What is wrong with the page."""


def _of_html(page: Page, hashes: Collection[str] | None) -> Listing:
    body = page.body
    if re.search(rb"<!--|<(?:script|style|template)\b", body, re.IGNORECASE):
        body = _without_hidden(body)
    first = _START.search(body)
    head = body[: min(first.start() if first else len(body), _HEAD)]
    wanted = {one.encode() for one in hashes} if hashes is not None else None
    starts = _every(body) if wanted is None else _near(body, wanted)
    files = []
    for number, start in enumerate(starts):
        if number >= MOST_FILES:
            raise _Odd(f"more than {MOST_FILES} links")
        if file := _link(body, start):
            files.append(file)
    if (
        wanted is None
        and not files
        and not re.search(rb"<(!doctype\s+html|html|head|body)\b", body[:_HEAD], re.I)
    ):
        raise _Odd("not HTML")
    return Listing(base=_base(page.url, head), files=tuple(files))


def _without_hidden(body: bytes) -> bytes:
    """*body* less comments and scripts, which are bounded: one without an end costs a search to the end."""
    if (
        body.count(b"<!--") > MOST_FILES
        or len(re.findall(rb"<(?:script|style|template)\b", body, re.I)) > 100
    ):
        raise _Odd("too many comments or scripts")
    if body.count(b"<!--") > body.count(b"-->"):
        raise _Odd("a comment that does not end")
    return _HIDDEN.sub(b"", body)


def _every(body: bytes) -> Iterator[int]:
    return (found.start() for found in _START.finditer(body))


def _near(body: bytes, wanted: Collection[bytes]) -> Iterator[int]:
    """Where the links stand that name one of *wanted*."""
    lower, starts = body.lower(), set()
    for digest in wanted:
        at = -1
        for _ in range(16):  # links with one hash
            if (at := lower.find(digest, at + 1)) < 0:
                break
            starts.add(lower.rfind(b"<a", max(0, at - _LINK), at))
    return iter(sorted(starts - {-1}))


def _link(body: bytes, start: int) -> Listed | None:
    """The file of the link at *start*; None where it is no link to a file."""
    tag = _TAG.match(body, start, start + _LINK)
    text = _TEXT.match(body, tag.end(), tag.end() + _LINK) if tag else None
    if not tag or not text:
        return None
    told = _attributes(tag[1])
    if "href" not in told:
        return None
    href, _, fragment = told["href"].strip().partition("#")
    kind, _, digest = fragment.partition("=")
    metadata = told.get("data-core-metadata", told.get("data-dist-info-metadata"))
    return Listed(
        filename=html.unescape(text[1].decode("utf-8", "replace")).strip(),
        href=href,
        sha256=digest.lower() if kind.lower() == "sha256" and _SHA256.fullmatch(digest) else "",
        requires_python=told.get("data-requires-python", "").strip(),
        uploaded=told.get("data-upload-time", ""),
        yanked=told.get("data-yanked"),
        metadata=None if metadata is None or metadata.lower() == "false" else _metadata_hash(metadata),
    )


def _attributes(text: bytes) -> dict[str, str]:
    """Name → value; the first of a name counts, as in a browser."""
    found: dict[str, str] = {}
    for name, *values in _ONE.findall(text):
        value = next((one for one in values if one), b"").decode("utf-8", "replace")
        found.setdefault(
            name.decode("utf-8", "replace").lower(), html.unescape(value) if "&" in value else value
        )
    return found


def _metadata_hash(text: str) -> str:
    kind, _, digest = text.partition("=")
    return digest.lower() if kind == "sha256" and _SHA256.fullmatch(digest) else ""


def _base(url: str, head: bytes) -> str:
    """What links are relative to; also holds the head to the version of the format.

    :raises _Odd: it is a version that is not known.
    """
    for found in _META.finditer(head):
        tag = _TAG.match(head, found.start())
        told = _attributes(tag[1]) if tag else {}
        if told.get("name", "").lower() == "pypi:repository-version":
            _demand_version(told.get("content", ""))
    base = _BASE.search(head)
    tag = _TAG.match(head, base.start()) if base else None
    return urljoin(url, _attributes(tag[1]).get("href", "")) if tag else url


def _demand_version(told: object) -> None:
    if not isinstance(told, str) or not re.fullmatch(r"1\.\d{1,4}", told.strip()):
        raise _Odd(f"its API version is {str(told)[:20]!r}, known is 1")


def _of_json(page: Page) -> Listing:
    if page.body.count(b",") + page.body.count(b"[") + page.body.count(b"{") > _PIECES:
        raise _Odd(f"more than {_PIECES} values")
    text = page.body.decode("utf-8")
    if levels(text) > DEPTH:
        raise _Odd(f"nested deeper than {DEPTH} levels")
    document = json.loads(text)
    meta, files = _mapping(document, "the page").get("meta"), document.get("files")
    _demand_version(_mapping(meta, "meta").get("api-version"))
    if not isinstance(files, list):
        raise _Odd("`files` is not a list")
    if len(files) > MOST_FILES:
        raise _Odd(f"more than {MOST_FILES} files")
    return Listing(base=page.url, files=tuple(_entry(one) for one in files))


def _entry(told: Any) -> Listed:
    file = _mapping(told, "a file")
    hashes = _mapping(file.get("hashes"), "`hashes`")
    size = file.get("size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise _Odd("`size` is not a whole number")
    digest = _text(hashes, "sha256") or ""
    yanked = file.get("yanked", False)
    if not isinstance(yanked, (bool, str)):
        raise _Odd("`yanked` is neither true, false nor a text")
    beside = file.get("core-metadata", file.get("dist-info-metadata", False))
    if not isinstance(beside, bool):
        beside = _text(_mapping(beside, "`core-metadata`"), "sha256") or ""
    filename, href = _text(file, "filename"), _text(file, "url")
    if not filename or not href:
        raise _Odd("a file without a name or an address")
    return Listed(
        filename=filename,
        href=href.partition("#")[0],
        sha256=digest.lower() if _SHA256.fullmatch(digest) else "",
        size=size if size is not None and 0 <= size <= _SIZE else None,
        requires_python=_text(file, "requires-python") or "",
        uploaded=_text(file, "upload-time") or "",
        yanked=yanked if isinstance(yanked, str) else "" if yanked else None,
        metadata=None if beside is False else _metadata_hash(f"sha256={beside}"),
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Odd(f"{what} is not an object")
    return value


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise _Odd(f"`{key}` is not a text")
    if value and not value.isascii():
        value.encode()  # half a character is a ValueError
    return value
