"""Parses untrusted project pages of a simple index, HTML or JSON (PEP 503, 691, 700, 714). Pure.

A page can have ten megabytes and tens of thousands of links, and a lock reads hundreds of pages, so the HTML
is not parsed into a tree: each link is matched separately. Names and URLs are checked in `read_page`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from urllib.parse import urljoin

import msgspec

from torchkiln.errors import BuildFailed
from torchkiln.index.settings import redact
from torchkiln.util.http.redirects import unsafe
from torchkiln.util.strict_json import limit, without_strings

MOST_FILES = 50_000  # of one page; the largest known page has a third of that
_VALUES = 1_000_000  # of a JSON page: each takes a hundred bytes of memory
_HEAD = 1 << 16  # bytes before the first link: <base> and the version of the page's format
_LINK = 1 << 14  # bytes of one link
_SIZE = 1 << 40  # bytes of one file
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_START = re.compile(rb"<[aA](?=[\s>])")
_HIDDEN = re.compile(rb"<!--.*?-->|<(script|style|template)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_ATTRIBUTE = rb"""\s+([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+)))?"""
_ATTRIBUTES = re.compile(_ATTRIBUTE)
_TAG = re.compile(rb"<[a-zA-Z]+((?:" + _ATTRIBUTE + rb")*)\s*/?>")
_TEXT = re.compile(rb"([^<]*)</[aA]\s*>")
_BASE = re.compile(rb"<base(?=\s)", re.IGNORECASE)
_META = re.compile(rb"<meta(?=\s)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page as the server sent it."""

    url: str  # after redirects: links are relative to it
    json: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedFile:
    """One file of a page."""

    filename: str
    href: str = field(repr=False)  # as on the page
    base: str = field(repr=False)  # the URL that `href` is relative to
    sha256: str  # hex, lower case; "" if the page has none
    size: int | None = None
    requires_python: str = ""
    uploaded: str = ""  # ISO 8601, not parsed
    yanked: str | None = None  # the reason, which may be empty; None: not yanked

    @property
    def url(self) -> str:
        """The absolute URL, which may be unsafe: see `read_page.located`."""
        try:
            return urljoin(self.base, self.href).partition("#")[0]
        except ValueError:
            return self.href


def listing(page: Page, hashes: Collection[str] | None = None) -> tuple[ListedFile, ...]:
    """The files of *page*. With *hashes*, only the files that have one of these SHA-256 hashes.

    :raises BuildFailed: *page* is not a project page, or has more files than any project.
    """
    try:
        return _parse_json(page, hashes) if page.json else _parse_html(page, hashes)
    except _InvalidPage as error:
        raise not_a_page(page.url, str(error)) from error
    except msgspec.ValidationError as error:
        raise not_a_page(page.url, str(error)[:200]) from error
    except (ValueError, RecursionError) as error:
        raise not_a_page(page.url, "invalid JSON" if page.json else "invalid HTML") from error


def not_a_page(url: str, why: str) -> BuildFailed:
    """The error for a response that is not a project page."""
    return BuildFailed(
        f"{redact(url)}: not a project page of a simple index: {why}", hint="check the index URL"
    )


class _InvalidPage(Exception):
    """The page is malformed."""


def _parse_html(page: Page, hashes: Collection[str] | None) -> tuple[ListedFile, ...]:
    body = page.body
    if re.search(rb"<!--|<(?:script|style|template)\b", body, re.IGNORECASE):
        body = _without_hidden(body)
    first = _START.search(body)
    base = _base(page.url, body[: min(first.start() if first else len(body), _HEAD)])
    starts = (found.start() for found in _START.finditer(body)) if hashes is None else _near(body, hashes)
    files = []
    for number, start in enumerate(starts):
        if number >= MOST_FILES:
            raise _InvalidPage(f"more than {MOST_FILES} links")
        if file := _link(body, start, base):
            files.append(file)
    if (
        hashes is None
        and not files
        and not re.search(rb"<(!doctype\s+html|html|head|body)\b", body[:_HEAD], re.I)
    ):
        raise _InvalidPage("not HTML")
    return tuple(files)


def _without_hidden(body: bytes) -> bytes:
    """*body* without comments and scripts. Too many are an error: for each, all of *body* may be searched."""
    if (
        body.count(b"<!--") > MOST_FILES
        or len(re.findall(rb"<(?:script|style|template)\b", body, re.I)) > 100
    ):
        raise _InvalidPage("too many comments or scripts")
    if body.count(b"<!--") > body.count(b"-->"):
        raise _InvalidPage("unclosed comment")
    return _HIDDEN.sub(b"", body)


def _near(body: bytes, hashes: Collection[str]) -> Iterator[int]:
    """Where the links with one of *hashes* start."""
    lower, starts = body.lower(), set()
    for digest in hashes:
        at = -1
        for _ in range(16):  # most links with the same hash
            if (at := lower.find(digest.encode(), at + 1)) < 0:
                break
            starts.add(lower.rfind(b"<a", max(0, at - _LINK), at))
    return iter(sorted(starts - {-1}))


def _link(body: bytes, start: int, base: str) -> ListedFile | None:
    """The file of the link at *start*; None if it is not a link to a file."""
    tag = _TAG.match(body, start, start + _LINK)
    text = _TEXT.match(body, tag.end(), tag.end() + _LINK) if tag else None
    if not tag or not text:
        return None
    attributes = _attributes(tag[1])
    if "href" not in attributes:
        return None
    href, _, fragment = attributes["href"].strip().partition("#")
    return ListedFile(
        filename=html.unescape(text[1].decode("utf-8", "replace")).strip(),
        href=href,
        base=base,
        sha256=_sha256_in(fragment),
        requires_python=attributes.get("data-requires-python", "").strip(),
        uploaded=attributes.get("data-upload-time", ""),
        yanked=attributes.get("data-yanked"),
    )


def _attributes(text: bytes) -> dict[str, str]:
    """Name → value; of repeated names the first, as in a browser."""
    found: dict[str, str] = {}
    for name, *values in _ATTRIBUTES.findall(text):
        value = next(filter(None, values), b"").decode("utf-8", "replace")
        found.setdefault(
            name.decode("utf-8", "replace").lower(), html.unescape(value) if "&" in value else value
        )
    return found


def _sha256_in(text: str) -> str:
    """The digest in "sha256=…"; "" if there is none."""
    algorithm, _, digest = text.partition("=")
    return _sha256(digest) if algorithm.lower() == "sha256" else ""


def _sha256(digest: str | None) -> str:
    """*digest* in lower case; "" if it is not a SHA-256."""
    return digest.lower() if digest and _SHA256.fullmatch(digest) else ""


def _base(url: str, head: bytes) -> str:
    """The URL that links are relative to; also checks the version in the page's head.

    :raises _InvalidPage: the version is not supported, or the URL is unsafe.
    """
    for found in _META.finditer(head):
        tag = _TAG.match(head, found.start())
        attributes = _attributes(tag[1]) if tag else {}
        if attributes.get("name", "").lower() == "pypi:repository-version":
            _check_version(attributes.get("content", ""))
    base = _BASE.search(head)
    tag = _TAG.match(head, base.start()) if base else None
    if not tag:
        return url
    joined = urljoin(url, _attributes(tag[1]).get("href", ""))
    if why := unsafe(joined, url):
        raise _InvalidPage(f"unsafe <base>: {why}")
    return joined


def _check_version(version: str) -> None:
    if not re.fullmatch(r"1\.\d{1,4}", version.strip()):
        raise _InvalidPage(f"unsupported API version {version[:20]!r}")


class _JsonHashes(msgspec.Struct):
    sha256: str | None = None


class _JsonFile(msgspec.Struct, rename="kebab"):
    """A file of a page by PEP 691; other fields are ignored."""

    filename: str
    url: str
    hashes: _JsonHashes
    size: int | None = None
    requires_python: str | None = None
    upload_time: str | None = None
    yanked: bool | str = False

    def listed(self, base: str) -> ListedFile:
        return ListedFile(
            filename=self.filename,
            href=self.url.partition("#")[0],
            base=base,
            sha256=_sha256(self.hashes.sha256),
            size=self.size if self.size is not None and 0 <= self.size <= _SIZE else None,
            requires_python=self.requires_python or "",
            uploaded=self.upload_time or "",
            yanked=self.yanked if isinstance(self.yanked, str) else "" if self.yanked else None,
        )


class _JsonMeta(msgspec.Struct, rename="kebab"):
    api_version: str


class _JsonPage(msgspec.Struct):
    meta: _JsonMeta
    files: list[_JsonFile]


# Created before threads read pages: msgspec 0.22 crashes if several threads use a class for the first time.
_JSON_PAGE = msgspec.json.Decoder(_JsonPage)


def _parse_json(page: Page, hashes: Collection[str] | None) -> tuple[ListedFile, ...]:
    text = page.body.decode("utf-8")
    try:
        limit(without_strings(text), values=_VALUES)
    except ValueError as error:
        raise _InvalidPage(str(error)) from error
    document = _JSON_PAGE.decode(text)
    _check_version(document.meta.api_version)
    if len(document.files) > MOST_FILES:
        raise _InvalidPage(f"more than {MOST_FILES} files")
    if not all(file.filename and file.url for file in document.files):
        raise _InvalidPage("a file without a name or a URL")
    files = document.files
    if hashes is not None:
        files = [file for file in files if (file.hashes.sha256 or "").lower() in hashes]
    return tuple(file.listed(page.url) for file in files)
