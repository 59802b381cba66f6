"""Recognizes lines of requirements that have no effect in an image, and what `pip freeze` writes.

torch comes with the image, so a place to get it from has no effect. Pure.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

_PLACE = re.compile(
    r"(?:^|\s)(?:--(?:extra-)?index-url|--find-links|--trusted-host|-[if])[=\s]*[\"']?(?P<value>[^\s\"']+)[\"']?"
)
_MIRRORED = re.compile(r"/(pytorch-wheels|pytorch/whl)(/|$)")
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


def without_places(line: str) -> tuple[str, list[str]]:
    """The *line* of a requirements file without options that name PyTorch's index, and these options."""
    found = [match[0].strip() for match in _PLACE.finditer(line) if is_pytorchs(match["value"])]
    for option in found:
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
