"""Recognizes lines of requirements that have no effect in an image, and what `pip freeze` writes.

torch comes with the image, so a place to get it from has no effect; PyPI and its public mirrors are the index
that the configuration of pip or uv names, or its like. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from torchkiln.matrix.mirrors import load

_PLACE = re.compile(
    r"(?:^|\s)(?:--(?:extra-)?index-url|--find-links|--trusted-host|-[if])[=\s]*[\"']?(?P<value>[^\s\"']+)[\"']?"
)
_MIRRORED = re.compile(r"/(pytorch-wheels|pytorch/whl)(/|$)")
INDEX = "set the index in the configuration of pip or uv: PIP_INDEX_URL or UV_DEFAULT_INDEX"
_EXTRAS = re.compile(r"\./?\[(?P<names>[^\]]*)\]")
_NOTE = re.compile(r"\s{0,9}# Editable .{0,200}\((?P<pin>(?P<name>[\w.-]{1,200})==[^\s)]{1,200})\)")


def is_pytorchs(url: str) -> bool:
    """Whether *url* is in PyTorch's own index, or in a mirror of it; it may be a host alone."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host = parts.hostname or ""
    except ValueError:
        return False
    mirrored = parts.scheme in ("http", "https") and _MIRRORED.search(parts.path)
    return bool(mirrored) or (host.startswith("download") and host.endswith(".pytorch.org"))


@cache
def _pypi() -> frozenset[str]:
    """PyPI and the presets of mirrors, which serve the same files: hosts, and URLs without scheme."""
    presets = (preset["UV_DEFAULT_INDEX"].partition("://")[2] for preset in load().values())
    places = ("pypi.org/simple", "pypi.python.org/simple", *presets)
    return frozenset((*places, *(place.partition("/")[0] for place in places)))


def served(url: str) -> str:
    """What *url*, or a host, serves: "torch" if it is PyTorch's index, "index" if PyPI or a mirror; or ""."""
    if is_pytorchs(url):
        return "torch"
    return "index" if (url.partition("://")[2] or url).rstrip("/") in _pypi() else ""


def settings_without_effect(
    document: Mapping[str, Any], required: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """What uv, Poetry or PDM would do with *document*, a pyproject.toml, and its reader does not.

    Each setting comes with what is wrong, and what to do.

    :param required: the names of the project's packages that do not come with the image.
    """
    tools = _table(document.get("tool"))
    uv, indexes = _table(tools.get("uv")), dict[str, str]()
    for tool, key in (("uv", "index"), ("poetry", "source"), ("pdm", "source")):
        for one in filter(None, map(_table, _list(_table(tools.get(tool)).get(key)))):
            url = str(one.get("url") or ("pypi.org" if one.get("name") == "PyPI" else ""))
            indexes[str(one.get("name"))] = url
            if not (served(url) or one.get("explicit") or one.get("priority") == "explicit"):
                yield f"[[tool.{tool}.{key}]] {url}".rstrip(), "a project cannot choose the index", INDEX
    for key in ("index-url", "extra-index-url", "find-links"):
        for url in map(str, _list(uv.get(key))):
            if not served(url):
                yield f"[tool.uv] {key} {url}", "a project cannot choose the index", INDEX
    for key in ("override-dependencies", "constraint-dependencies", "exclude-dependencies"):
        if uv.get(key):
            yield f"[tool.uv] {key}", "it has an effect in uv.lock only", "run: uv lock"
    for name, sources in _table(uv.get("sources")).items():
        of_indexes = [served(indexes.get(str(_table(one).get("index")), "")) for one in _list(sources)]
        if canonicalize_name(name) in required and not all(of_indexes):
            yield f"[tool.uv.sources] {name}", "it has an effect in uv.lock only", "run: uv lock"


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def without_places(line: str) -> tuple[str, list[tuple[str, str]]]:
    """The *line* of a requirements file without options that name one of these, and what they serve."""
    found = [(name, match[0].strip()) for match in _PLACE.finditer(line) if (name := served(match["value"]))]
    for _, option in found:
        line = line.replace(option, "", 1)
    return line.strip(), found


def is_itself(target: str, root: str, own: str, note: str) -> bool:
    """Whether *target* of `-e` is the project *own* in the folder *root*, perhaps on another machine.

    :param note: the line above.
    """
    place, _, fragment = unquote(target).partition("#")
    path = posixpath.normpath(re.sub(r"^file:(//)?", "", place))
    if path in (".", root):
        return True
    named = re.search(r"(?:^|&)egg=([\w.-]+)", fragment)
    above = _NOTE.match(note)
    names = [named and named[1], above and above["name"]]
    if not any(names) and (path.startswith("/") or "://" in place):
        names = [posixpath.basename(path.partition("@")[0]).removesuffix(".git")]
    return own in {canonicalize_name(name) for name in names if name}


def instead_of(target: str, note: str) -> str:
    """What to write in place of `-e` *target*, if `pip freeze` wrote it; *note* is the line above."""
    if found := _NOTE.match(note):
        return f"write {found['pin']} in place of the folder, if the index has it"
    if found := _EXTRAS.fullmatch(target):
        return f"use --extra {found['names']} with [project] dependencies in pyproject.toml, in place of .[…]"
    if "+" in target.partition("://")[0]:
        return "write NAME @ git+https://…@COMMIT in place of -e git+…; remove it if it is the project itself"
    return ""
