"""Reads requirements: of a package, or of one wheel by its path in the project's folder or its URL.

A requirement that a lock cannot represent is an error. Requirements are untrusted: number and length are
limited.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from torchkiln.errors import ConfigError
from torchkiln.index.settings import redact_text
from torchkiln.projects.asked import Asked
from torchkiln.projects.sources.by_commit import repository_required
from torchkiln.util.http.redirects import unsafe

MOST = 5_000  # requirements of all files
CORRECT = "correct the lines"
BUILD = (
    "build a wheel from the source code (python -m pip wheel --no-deps), put it into a folder of the project,"
    " and require it by path: ./wheels/NAME.whl"
)
_LONGEST = 4_000  # characters of a requirement without its hashes
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_SHA256_IN_URL = re.compile(r"(?:.*&)?sha256=([0-9a-f]{64})(?:&.*)?")
_PATH = re.compile(r"(\.|/|~|file:)|.*(\.whl|\.tar\.gz|\.zip)(\[.*\])?\s*$|[^\s;@<>=!~]*/", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_BARE = re.compile(  # a wheel without `NAME @`
    r"(?P<file>[^\s;\[#@]+\.whl|https?://[^\s;\[#]+\.whl)(?P<fragment>#[^\s;\[]*)?(?P<extras>\[[^\]]*\])?"
    r"\s*(;(?P<marker>.*))?",
    re.IGNORECASE,
)
_LOCAL = "a local file must be a wheel"
_SOURCE = "source code at a direct URL cannot be locked"


class _Unsupported(ValueError):
    """A requirement that cannot be locked, and what to do."""

    def __init__(self, message: str, advice: str = CORRECT) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(kw_only=True, slots=True)
class Requirements:
    """The requirements and constraints of several files, and the faults in them."""

    requirements: list[Asked] = field(default_factory=list)
    constraints: list[Asked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def refuse(self, fault: str, advice: str = CORRECT) -> None:
        """Add a fault, and what to do about it."""
        self.faults.append(fault)
        self.advice.append(advice)

    def add(self, text: str, where: str, *, constraint: bool = False, by_name: bool = True) -> None:
        """Add the requirement *text*, which may have hashes, or its fault."""
        hashes = _HASH.findall(text)
        kept = tuple(found[1] for value in hashes if (found := _SHA256.fullmatch(value)))
        text = _HASH.sub("", text).strip()
        try:
            if hashes and not kept:
                raise _Unsupported(f"{hashes[0][:80]}: only sha256:<64 hex digits> is supported as hash")
            asked = _asked(text, kept, where, constraint=constraint, by_name=by_name)
        except ValueError as error:
            advice = error.advice if isinstance(error, _Unsupported) else CORRECT
            self.refuse(f"{where}: {redact_text(f'{text[:200]}: {error}')}", advice)
            return
        (self.constraints if constraint else self.requirements).append(asked)

    def require_sound(self) -> None:
        """:raises ConfigError: there are faults; lists all of them."""
        if len(self.requirements) + len(self.constraints) > MOST:
            self.refuse(f"more than {MOST} requirements", "require fewer")
        if self.faults:
            raise ConfigError.of(self.faults, hint="; ".join(dict.fromkeys(self.advice)))


def _asked(text: str, hashes: tuple[str, ...], where: str, *, constraint: bool, by_name: bool) -> Asked:
    """The requirement *text*.

    :raises ValueError: it cannot be locked.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    if _VARIABLE.search(text):
        raise ValueError("environment variables are not expanded")
    if re.search(r"\s--?[A-Za-z]", text):
        raise ValueError("only --hash is supported as an option of a requirement")
    wheel, repository = _wheel(text), repository_required(text)
    if constraint and (wheel or repository):
        raise ValueError(f"a constraint cannot be a {'file' if wheel else 'repository'}")
    if repository:
        if hashes:
            raise ValueError("a repository cannot have a --hash: remove it")
        return Asked(text=repository[0], where=where, by_name=by_name, repository=repository[1])
    path = url = ""
    if wheel:
        text, path, url, sha256 = wheel
        hashes = (*hashes, *filter(None, (sha256,)))
        if url and len({*hashes}) != 1:
            raise _Unsupported(
                "a direct URL of a wheel requires one sha256", "add it: https://…/NAME.whl#sha256=<64 hex>"
            )
    requirement = _requirement(text, constraint=constraint)
    return Asked(text=str(requirement), where=where, hashes=hashes, by_name=by_name, path=path, url=url)


def _requirement(text: str, *, constraint: bool) -> Requirement:
    """*text*, parsed.

    :raises ValueError: it is not a requirement of a package on an index.
    """
    if _URL.match(text):
        raise _Unsupported(_SOURCE, BUILD)
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        if _PATH.match(text):
            raise _Unsupported(_LOCAL, BUILD) from None
        raise ValueError(f"invalid requirement: {str(error).splitlines()[0][:200]}") from None
    if requirement.url:
        raise _Unsupported(_SOURCE if _URL.match(requirement.url) else _LOCAL, BUILD)
    if constraint and requirement.extras:
        raise ValueError(f"a constraint cannot have extras: remove [{', '.join(sorted(requirement.extras))}]")
    return requirement


def _wheel(text: str) -> tuple[str, str, str, str] | None:
    """What the requirement *text* of one wheel names; None: it names none.

    The requirement (PEP 508) for exactly the version of the wheel; its path relative to the project's folder,
    or its URL without a fragment; and the sha256 in the fragment.

    :raises ValueError: the requirement cannot be locked.
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
        target, _, fragment = (requirement.url or "").partition("#")
        if not target.endswith(".whl"):
            return None
        name, marker = requirement.name, str(requirement.marker or "")
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    is_url = _HTTP.match(target) is not None
    filename = unquote(urlsplit(target).path if is_url else target).rpartition("/")[2]
    try:
        project, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise ValueError("not a valid wheel filename") from None
    if name and canonicalize_name(name) != project:
        raise ValueError(f"this is a wheel of {project}, not of {name}")
    # The local version is left out, because METADATA may lack it: see `own_wheels.local_wheel`.
    required = f"{project}{extras}=={version.public}" + (f" ; {marker.strip()}" if marker.strip() else "")
    if not is_url:
        return required, _inside(target), "", ""
    # A lock must not contain credentials or a query.
    if why := unsafe(target, target) or ("a URL must not have a query" if urlsplit(target).query else ""):
        raise ValueError(why)
    sha256 = _SHA256_IN_URL.fullmatch(fragment.removeprefix("#").lower())
    return required, "", target, sha256[1] if sha256 else ""


def _inside(target: str) -> str:
    """*target* as a path relative to the project's folder."""
    path = re.sub(r"^file:(?!//)", "", target, flags=re.IGNORECASE)
    if _SCHEME.match(path) or path.startswith(("/", "~")):
        raise ValueError("write the path relative to the project's folder: ./wheels/NAME.whl")
    path = posixpath.normpath(path)
    if path.startswith("../"):
        raise ValueError("not a file in the project's folder")
    return path
