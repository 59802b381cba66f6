"""Reads requirements that name one wheel: by its path in the project's folder, or by its URL. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from torchkiln.util.http.redirects import unsafe

_URL = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_BARE = re.compile(
    r"(?P<file>[^\s;\[#@]+\.whl|https?://[^\s;\[#]+\.whl)(?P<fragment>#[^\s;\[]*)?(?P<extras>\[[^\]]*\])?"
    r"\s*(;(?P<marker>.*))?",
    re.IGNORECASE,
)
_SHA256 = re.compile(r"(?:.*&)?sha256=([0-9a-f]{64})(?:&.*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelRequirement:
    """A requirement that names one wheel; either `path` or `url` is set."""

    text: str  # PEP 508, with the wheel's name and version
    path: str = ""  # relative to the project's folder, normalized
    url: str = ""  # without a fragment
    sha256: str = ""  # from the fragment of the URL; "": the URL has none


def wheel_required(text: str) -> WheelRequirement | None:
    """The wheel that the requirement *text* names by path or URL; None: it names none.

    :raises ValueError: the requirement cannot be locked; the message says why.
    """
    name, found = "", _BARE.fullmatch(text)
    if found:
        target, fragment = found["file"], found["fragment"] or ""
        extras, marker = found["extras"] or "", found["marker"] or ""
    else:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return None
        target, sharp, fragment = (requirement.url or "").partition("#")
        if not target.endswith(".whl"):
            return None
        name, fragment = requirement.name, sharp + fragment
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        marker = str(requirement.marker or "")
    required = _exact(target, name, extras, marker.strip())
    if not _URL.match(target):
        return WheelRequirement(text=required, path=_inside(target))
    _demand_plain(target)
    sha256 = _SHA256.fullmatch(fragment.removeprefix("#").lower())
    return WheelRequirement(text=required, url=target, sha256=sha256[1] if sha256 else "")


def _exact(target: str, name: str, extras: str, marker: str) -> str:
    """The requirement (PEP 508) for exactly the version of the wheel at *target*."""
    filename = unquote(urlsplit(target).path if _URL.match(target) else target).rpartition("/")[2]
    try:
        project, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise ValueError("not a valid wheel filename") from None
    if name and canonicalize_name(name) != project:
        raise ValueError(f"this is a wheel of {project}, not of {name}")
    # The local version is left out, because METADATA may lack it: see `own_wheels.local_wheel`.
    return f"{project}{extras}=={version.public}" + (f" ; {marker}" if marker else "")


def _inside(target: str) -> str:
    """*target* as a path relative to the project's folder."""
    path = re.sub(r"^file:(?!//)", "", target, flags=re.IGNORECASE)
    if _SCHEME.match(path) or path.startswith(("/", "~")):
        raise ValueError("write the path relative to the project's folder: ./wheels/NAME.whl")
    path = posixpath.normpath(path)
    if path.startswith("../"):
        raise ValueError("not a file in the project's folder")
    return path


def _demand_plain(url: str) -> None:
    """:raises ValueError: *url* is invalid, or has credentials or a query, which a lock must not contain."""
    if why := unsafe(url, url):
        raise ValueError(why)
    if urlsplit(url).query:
        raise ValueError("a URL must not have a query")
