"""Reads requirements: of a package, or of one wheel by its path or URL; and requirements.txt by pip's rules.

A requirement that a lock cannot represent is an error. Files and requirements are untrusted: number, size,
depth and length are limited, and included files must be in the project's folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.index.settings import redact_text
from torchkiln.projects.asked import LONGEST, MOST, TEXT, Asked, Ignored
from torchkiln.projects.elsewhere import INDEX, instead_of, is_itself, is_pytorchs, without_places
from torchkiln.projects.files import read_inside, text_for_pip
from torchkiln.projects.fixed import comes_with_torch
from torchkiln.projects.sources.by_commit import repository_required
from torchkiln.util.http.redirects import unsafe
from torchkiln.util.wheel_names import parse_wheel_filename

CORRECT = "correct the lines"
BUILD = (
    "build a wheel from the source code (python -m pip wheel --no-deps), put it into a folder of the project,"
    " and require it by path: ./wheels/NAME.whl"
)
FREEZE = "pip list --format=freeze prints versions in place of paths"
_LINES = 1 << 18  # of all files: each requirement can have fifty hashes
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})")
_SHA256_IN_URL = re.compile(r"(?:.*&)?sha256=([0-9a-f]{64})(?:&.*)?")
_PATH = re.compile(r"(\.|/|~|file:)|.*(\.whl|\.tar\.gz|\.zip)(\[.*\])?\s*$|[^\s;@<>=!~]*/", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_HOST = re.compile(r"://(?:[^/]*@)?([\w.-]*)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_BARE = re.compile(  # a wheel without `NAME @`
    r"(?P<file>[^\s;\[#@]+\.whl|https?://[^\s;\[#]+\.whl)(?P<fragment>#[^\s;\[]*)?(?P<extras>\[[^\]]*\])?"
    r"\s*(;(?P<marker>.*))?",
    re.IGNORECASE,
)
_LOCAL = "a local file must be a wheel"
_SOURCE = "source code at a direct URL cannot be locked"
_FILES = 50
_DEPTH = 10  # levels of files that include each other
_COMMENT = re.compile(r"(^|(?<!\s)\s+)#.*$")  # takes linear time, even for a long line of spaces
_COMMENT_LINE = re.compile(r"\s*#")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)[=\s]?\s*(.*)", re.DOTALL)
_EDITABLE = re.compile(r"(?:(?:-e|--editable)[=\s]?\s*|(?=\./?(?:$|\[)))(\S+)")  # or the folder itself
_SHORT = re.compile(r"(-[rceif])(\S.*)")

_FOLDER = 'name a folder of wheels in torchkiln.toml: wheels = "wheels"'
# option -> what is wrong with it, and what to do
_REFUSED = {
    **dict.fromkeys(("-e", "--editable"), ("editable packages cannot be locked", BUILD)),
    **dict.fromkeys(
        ("-i", "--index-url", "--extra-index-url", "--no-index", "--trusted-host"),
        ("a project cannot choose the index", INDEX),
    ),
    **dict.fromkeys(("-f", "--find-links"), ("this option is not supported", _FOLDER)),
    "--pre": ("this option is not supported", "name a pre-release in its requirement: NAME==2.0rc1"),
    "--no-binary": ("only wheels can be locked", CORRECT),
}
_IGNORED = frozenset({"--prefer-binary", "--only-binary", "--require-hashes", "--use-feature"})
_NESTED = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}

_LOGIN = (
    "remove {} from the URL; if it is a login, write it into ~/.netrc: machine {} login USER password TOKEN"
)


class _Unsupported(ValueError):
    """A requirement that cannot be locked, and what to do."""

    def __init__(self, message: str, advice: str = CORRECT) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(kw_only=True, slots=True)
class Requirements:
    """The requirements and constraints of several files, the ignored lines, and the faults."""

    requirements: list[Asked] = field(default_factory=list)
    constraints: list[Asked] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    count: int = 0  # of requirements and options that were read
    text: int = 0  # their characters

    def refuse(self, fault: str, advice: str = CORRECT) -> None:
        """Add a fault, and what to do about it."""
        self.faults.append(fault)
        self.advice.append(advice)

    def take(self, text: str) -> None:
        """Count the requirement or option *text*, before it is parsed.

        :raises ConfigError: there are too many; lists all faults.
        """
        self.count, self.text = self.count + 1, self.text + len(text)
        if self.count > MOST or self.text > TEXT:
            most = f"{MOST} requirements" if self.count > MOST else f"{TEXT} characters of requirements"
            self.refuse(f"more than {most}", "require fewer")
            self.require_sound()

    def add(self, text: str, where: str, *, constraint: bool = False, by_name: bool = True) -> None:
        """Add the requirement *text*, which may have hashes, or its fault."""
        hashes = _HASH.findall(text)
        kept = tuple(found[1] for value in hashes if (found := _SHA256.fullmatch(value)))
        text = _HASH.sub("", text).strip()
        self.take(text)
        try:
            if hashes and not kept:
                raise _Unsupported(f"{hashes[0][:80]}: only sha256:<64 hex digits> is supported as hash")
            asked = _asked(text, kept, where, constraint=constraint, by_name=by_name)
        except ValueError as error:
            self.refuse(
                f"{where}: {redact_text(text)[:200]}: {redact_text(str(error))}",
                getattr(error, "advice", CORRECT),
            )
            return
        (self.constraints if constraint else self.requirements).append(asked)

    def require_sound(self) -> None:
        """:raises ConfigError: there are faults; lists all of them."""
        if self.faults:
            raise ConfigError.of(self.faults, hint="; ".join(dict.fromkeys(self.advice)))


def _asked(text: str, hashes: tuple[str, ...], where: str, *, constraint: bool, by_name: bool) -> Asked:
    """The requirement *text*.

    :raises ValueError: it cannot be locked.
    """
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    if found := _VARIABLE.search(text):
        host = _HOST.search(text)
        advice = _LOGIN.format(found[0], host[1] or "HOST") if host else CORRECT
        raise _Unsupported("environment variables are not expanded", advice)
    if re.search(r"\s--?[A-Za-z]", text):
        raise ValueError("only --hash is supported as an option of a requirement")
    if re.match(r"pkg[-_.]resources\s*==\s*0\.0\.0$", text, re.IGNORECASE):
        raise _Unsupported("not a package: an old pip of Debian lists it", "remove pkg-resources==0.0.0")
    wheel = _wheel(text) if ".whl" in text.lower() else None
    repository = repository_required(text) if "+" in text else None
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
    if (requirement.url or "").startswith("file:"):
        raise _Unsupported(f"{_LOCAL}; for a path that pip freeze wrote: {requirement.name}==VERSION", FREEZE)
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
    sha256 = _SHA256_IN_URL.fullmatch(fragment.removeprefix("#").lower())
    if is_url and comes_with_torch(project):  # no project has its own: a pin, which the image must satisfy
        required = required.replace(f"=={version.public}", f"=={version}", 1)
        return required, "", "", sha256[1] if sha256 and not is_pytorchs(target) else ""
    if not is_url:
        return required, _inside(target, f"{project}=={version}"), "", ""
    # A lock must not contain credentials or a query.
    if why := unsafe(target, target) or ("a URL must not have a query" if urlsplit(target).query else ""):
        raise ValueError(why)
    return required, "", target, sha256[1] if sha256 else ""


def _inside(target: str, pin: str) -> str:
    """*target*, the file of *pin*, as a path relative to the project's folder."""
    path = re.sub(r"^file:(?!//)", "", target, flags=re.IGNORECASE)
    if _SCHEME.match(path) or path.startswith(("/", "~")):
        raise ValueError(f"write the path relative to the project's folder: ./wheels/NAME.whl; or {pin}")
    path = posixpath.normpath(path)
    if path.startswith("../"):
        raise ValueError("not a file in the project's folder")
    return path


def read_requirements(folder: Path, name: str = "requirements.txt", own: str = "") -> Requirements:
    """The requirements in the file *name* in *folder*, and in the files that it names.

    :param own: the name of the project, normalized.
    :raises ConfigError: a file cannot be read, or has lines that are wrong or not supported; lists all.
    """
    found = Requirements()
    _Reader(folder.resolve(), found, own).read(folder / name, (), constraint=False)
    found.require_sound()
    return found


def logical_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """*lines* with their numbers, continuation lines joined, without comments; as pip does it."""
    first, parts = 0, list[str]()
    for number, line in enumerate(chain(lines, (None,)), 1):
        if line is not None and line.endswith("\\") and not _COMMENT_LINE.match(line):
            first = first if parts else number
            parts.append(line.strip("\\"))
            continue
        first = first if parts else number
        # The space keeps a comment apart from the line before it.
        parts.append("" if line is None else f" {line}" if _COMMENT_LINE.match(line) else line)
        if joined := _COMMENT.sub("", "".join(parts)).strip():
            yield first, joined
        parts = []


@dataclass(slots=True)
class _Reader:
    root: Path
    found: Requirements
    own: str
    files: int = 0
    lines: int = 0

    def read(self, path: Path, above: tuple[Path, ...], *, constraint: bool, where: str = "") -> None:
        """Read the file *path*.

        :param above: the files through which it is included, the outermost first.
        :param where: the line that includes it, "requirements.txt:3"; "": none.
        """
        where = where or path.name
        self.files += 1
        if self.files > _FILES or len(above) >= _DEPTH:
            self.found.refuse(
                f"{where}: more than {_FILES} files, or more than {_DEPTH} levels of included files"
            )
            return
        try:
            lines = text_for_pip(read_inside(self.root, path)).splitlines()
            self.lines += len(lines)
            if self.lines > _LINES:
                raise ValueError(f"more than {_LINES} lines")
        except ValueError as error:
            self.found.refuse(f"{where}: {error}")
            return
        for number, line in logical_lines(lines):
            place = f"{self._shown(path)}:{number}"
            line = self._with_effect(line, lines[max(number - 2, 0)], place)
            if not line:
                continue
            if line.startswith("-"):
                self._option(line, place, (*above, path.resolve()), constraint=constraint)
            else:
                self.found.add(line, place, constraint=constraint)

    def _with_effect(self, line: str, above: str, where: str) -> str:
        """The *line* without what has no effect in an image, which is listed; *above* is the line before."""
        rest, ignored = without_places(line)
        if option := _EDITABLE.fullmatch(rest):
            if is_itself(option[1], str(self.root), self.own, above):
                ignored, rest = [*ignored, (self.own, f"{rest}, the project itself")], ""
            elif advice := instead_of(option[1], above):
                self.found.advice.append(advice)
        for name, text in ignored:
            self.found.take(text)
            self.found.ignored.append(Ignored(name=name, version=redact_text(text), where=where))
        return rest

    def _option(self, line: str, where: str, above: tuple[Path, ...], *, constraint: bool) -> None:
        self.found.take(line)
        match = _SHORT.fullmatch(line) or _OPTION.fullmatch(line)
        option, value = (match[1], match[2].strip()) if match else (line, "")
        shown = f"{where}: {redact_text(line)[:200]}"
        if option in _NESTED and value:
            self._nested(value, shown, above, constraint=constraint or _NESTED[option])
        elif option not in _IGNORED:
            why, advice = _REFUSED.get(option, ("this option is not supported", CORRECT))
            self.found.refuse(f"{shown}: {why}", advice)

    def _nested(self, value: str, where: str, above: tuple[Path, ...], *, constraint: bool) -> None:
        path = above[-1].parent / value
        try:
            target = path.resolve()
        except (OSError, ValueError, RuntimeError):
            self.found.refuse(f"{where}: invalid path")
            return
        if _URL.match(value):
            self.found.refuse(f"{where}: not a file in the project's folder")
        elif target in above:
            self.found.refuse(f"{where}: the file recursively includes itself")
        else:
            self.read(path, above, constraint=constraint, where=where)

    def _shown(self, path: Path) -> str:
        """*path* for messages, relative to the project's folder."""
        try:
            return str(path.resolve().relative_to(self.root))
        except (OSError, ValueError, RuntimeError):
            return path.name
