"""Parses git's list of the files, links and submodules in a commit, which is not trusted. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchkiln.errors import printable
from torchkiln.util.http.redirects import unsafe

_LONGEST = 1000  # characters of a URL
_PATH = 4000  # bytes of a path
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_HTTPS = "the URL of a repository must begin with https://"
_ENTRY = re.compile(
    rb"(?P<mode>[0-7]{6}) (?P<kind>[a-z]+) (?P<id>[0-9a-f]{40}) +(?P<size>[0-9]+|-)\t(?P<path>.+)", re.DOTALL
)
_SETTING = re.compile(r"submodule\.(?P<name>.+)\.(?P<key>path|url|update)\n(?P<value>.*)", re.DOTALL)
_LINK, _SUBMODULE = "120000", "160000"


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """A file, a symbolic link or a submodule of a commit."""

    path: str  # relative to the root; bytes that are not UTF-8 are surrogates
    id: str  # of its blob; the commit of a submodule
    mode: str  # "100644"
    size: int  # bytes; 0 of a submodule

    @property
    def is_link(self) -> bool:
        """Whether its blob is the target of a symbolic link."""
        return self.mode == _LINK

    @property
    def is_submodule(self) -> bool:
        """Whether it is a commit of another repository."""
        return self.mode == _SUBMODULE


def url_fault(url: str) -> str:
    """Why the repository at *url* is not fetched; "" if it is. `http://` is for this machine only."""
    if not url.lower().startswith(("https://", "http://")):
        return _HTTPS
    if why := unsafe(url, url):
        return f"{why}: put them into ~/.netrc" if why == "it contains credentials" else why
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE:
        return _HTTPS
    if parts.query or parts.fragment or not parts.path.strip("/") or "@" in url:
        return "not the URL of a repository"
    return f"longer than {_LONGEST} characters" if len(url) > _LONGEST else ""


def entries(listing: bytes, most: int) -> tuple[TreeEntry, ...]:
    """The entries in *listing*, the output of `git ls-tree -r -z -l`.

    :raises ValueError: there are more than *most*, or a path is invalid, in `.git`, or listed twice.
    """
    rows = listing.split(b"\0")[:-1]
    if len(rows) > most:
        raise ValueError(f"more than {most} files")
    found = []
    for row in rows:
        match = _ENTRY.fullmatch(row)
        if match is None:
            raise ValueError(f"git listed {printable(row[:100].decode(errors='replace'))!r}")
        path = match["path"].decode("utf-8", "surrogateescape")
        if len(match["path"]) > _PATH or any(_is_wrong(part) for part in path.split("/")):
            raise ValueError(f"invalid path {printable(path[:200])!r}")
        size = int(match["size"]) if match["size"] != b"-" else 0
        found.append(TreeEntry(path=path, id=match["id"].decode(), mode=match["mode"].decode(), size=size))
    _demand_distinct(entry.path for entry in found)
    return tuple(found)


def _is_wrong(part: str) -> bool:
    return part in ("", ".", "..") or part.lower() == ".git"


def _demand_distinct(paths: Iterable[str]) -> None:
    """:raises ValueError: one of *paths* occurs twice, or is both a file and a folder."""
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in files:
            raise ValueError(f"{printable(path[:200])}: listed twice")
        files.add(path)
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    if both := sorted(files & folders):
        raise ValueError(f"{printable(both[0][:200])}: both a file and a folder")


def leads_out(path: str, target: str) -> bool:
    """Whether the symbolic link at *path* with the text *target* leads out of the tree."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return target.startswith("/") or "\0" in target or found == ".." or found.startswith("../")


def submodule_urls(settings: bytes, url: str) -> Mapping[str, str]:
    """Path → URL of the submodules, "" for those that are not checked out.

    :param settings: the output of `git config -z --list` for .gitmodules of the repository at *url*.
    """
    found: dict[str, dict[str, str]] = {}
    for row in settings.decode("utf-8", "surrogateescape").split("\0"):
        if match := _SETTING.fullmatch(row):
            found.setdefault(match["name"], {})[match["key"]] = match["value"]
    return {
        one["path"].rstrip("/"): "" if one.get("update") == "none" else _absolute(one["url"], url)
        for one in found.values()
        if one.get("path") and one.get("url")
    }


def _absolute(url: str, parent: str) -> str:
    """The absolute URL of a submodule, as in git; *url* may be relative to *parent*, its repository."""
    if not url.startswith(("./", "../")):
        return url
    base = parent.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            base = base.rpartition("/")[0]
        url = url.partition("/")[2]
    return f"{base}/{url}"
