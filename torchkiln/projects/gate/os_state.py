"""Compares the state files of dpkg and its helpers with the same files of the parent image. Pure.

OS packages may change no other files of the parent image. Entries of the parent image must stay,
and new entries must be about the packages in project.json.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from torchkiln.model.project import PROJECT_JSON
from torchkiln.projects.apt.loader_cache import PATH as LOADER_CACHE
from torchkiln.projects.apt.loader_cache import changed_libraries, parse_cache
from torchkiln.projects.apt.package_paths import LIST, LIST_LIMIT
from torchkiln.projects.gate import os_accounts
from torchkiln.projects.gate.entries import Below, OsLayer
from torchkiln.projects.gate.os_names import SystemNames, library_fault
from torchkiln.util.deb822 import INSTALLED, paragraphs

STATUS = "var/lib/dpkg/status"
FILE_LIMIT = LIST_LIMIT  # bytes; dpkg's status of 500 packages has 400,000
_INFO = re.compile(r"var/lib/dpkg/info/([a-z0-9][a-z0-9+.-]*?)(?::[a-z0-9-]+)?\.[a-z0-9]+")
_TRIGGERS = re.compile(r"var/lib/dpkg/triggers/[A-Za-z0-9_.+-]+")
_ALTERNATIVES = re.compile(r"var/lib/dpkg/alternatives/[^/]+")
_DIVERSIONS = "var/lib/dpkg/diversions"
_OVERRIDES = "var/lib/dpkg/statoverride"
_DEBCONF = re.compile(r"var/cache/debconf/(config|templates)\.dat")
_LINES = re.compile(r"var/lib/ucf/(hashfile|registry)(\.\d)?|etc/shells|var/lib/shells\.state")
_GITCONFIG = "etc/gitconfig"  # git runs programs that this file names
_OF_GIT_LFS = re.compile(
    r'\[filter "lfs"\]|\s*(clean = git-lfs clean -- %f|smudge = git-lfs smudge -- %f'
    r"|process = git-lfs filter-process|required = true)|"
)
_LIBRARIES = ("/lib/", "/usr/lib/")


def is_state(path: str) -> bool:
    """Whether *path* keeps state of dpkg or its helpers, so that its content is compared."""
    patterns = (_TRIGGERS, _ALTERNATIVES, _DEBCONF, _LINES)
    return (
        path in (STATUS, LOADER_CACHE, _OVERRIDES, _DIVERSIONS, _GITCONFIG)
        or path in os_accounts.PATHS
        or any(pattern.fullmatch(path) for pattern in patterns)
    )


def is_read(path: str) -> bool:
    """Whether the content of *path* in the layer of OS packages is read: also dpkg's lists of files."""
    return is_state(path) or LIST.fullmatch(path) is not None


def state_faults(path: str, layer: OsLayer, below: Below, names: SystemNames) -> Iterator[str]:
    """Why *layer* must not have its file *path*; no faults if it keeps no state of dpkg."""
    if (found := _INFO.fullmatch(path)) and found[1] not in layer.names:
        yield f"/{PROJECT_JSON} lists no package {found[1]}"
    if not is_state(path):
        return
    if path not in layer.files or (path in below.tree and path not in layer.below):
        yield "not a regular file, or too large"
        return
    before, after = layer.below.get(path, b""), layer.files[path]
    try:
        if path == LOADER_CACHE:
            yield from _cache(before, after, below, names)
            return
        yield from _text(path, before.decode(), after.decode(), layer, below)
    except ValueError as error:
        yield f"cannot be read: {error}"


def _text(path: str, before: str, after: str, layer: OsLayer, below: Below) -> Iterator[str]:
    if path == STATUS:
        yield from _status(before, after, layer)
    elif path in os_accounts.PATHS:
        yield from os_accounts.account_faults(path, before, after)
    elif _DEBCONF.fullmatch(path):
        old, new = (_stanzas(text, ("name",)) for text in (before, after))
        yield from (f"{key[0]} is changed or removed" for key in old if new.get(key) != old[key])
    elif path == _DIVERSIONS:
        yield from _diversions(before, after, layer, below)
    elif not _has_lines(after, before) or (path == _GITCONFIG and not after.startswith(before)):
        yield "lines of the parent image are changed, removed or in another order"
    elif path == _GITCONFIG:
        added = after.removeprefix(before).split("\n")
        lines = (line for line in added if not _OF_GIT_LFS.fullmatch(line))
        yield from (f"not a line of git-lfs: {line[:80]!r}" for line in lines)
    elif _TRIGGERS.fullmatch(path):
        yield from _triggers(before, after, layer)
    elif path == _OVERRIDES:
        yield from _overrides(
            before, after, {f"/{one.path}" for one in layer.entries if one.path not in below.tree}
        )
    elif _ALTERNATIVES.fullmatch(path) and before and _first(before) != _first(after):
        yield "the mode, auto or manual, differs from that in the parent image"


def _status(before: str, after: str, layer: OsLayer) -> Iterator[str]:
    """Compare dpkg's list of packages with that of the parent image and project.json."""
    key = ("package", "architecture")
    old, new = _stanzas(before, key), _stanzas(after, key)
    for name, architecture in sorted(old):
        if (name, architecture) not in new:
            yield f"{name} of the parent image is no longer listed"
        elif new[name, architecture] != old[name, architecture]:
            yield f"{name} of the parent image is changed"
    added = {
        (name, fields.get("version", ""), architecture)
        for (name, architecture), fields in new.items()
        if (name, architecture) not in old
    }
    known = {name for name, _ in old}
    for name, architecture in sorted(new.keys() - old.keys()):
        if name in known:
            yield f"{name} ({architecture}) has the name of a package of the parent image"
        if (status := new[name, architecture].get("status")) != INSTALLED:
            yield f"{name} is not installed: {status}"
    for name, version, architecture in sorted(added - layer.packages):
        yield f"{name} {version} ({architecture}) is installed; /{PROJECT_JSON} does not list it"
    for name, version, architecture in sorted(layer.packages - added):
        yield f"{name} {version} ({architecture}) is listed in /{PROJECT_JSON}, but not installed"


def _stanzas(text: str, key: tuple[str, ...]) -> dict[tuple[str, ...], Mapping[str, str]]:
    """The paragraphs in *text*, by the fields of *key*.

    :raises ValueError: two paragraphs have the same key, one has none, or a line is invalid.
    """
    found: dict[tuple[str, ...], Mapping[str, str]] = {}
    for fields in paragraphs(text.split("\n")):
        name = tuple(fields.get(field, "") for field in key)
        if name in found or not name[0]:
            raise ValueError(f"a paragraph has no name, or there are two of {name[0]!r}")
        found[name] = fields
    return found


def _cache(before: bytes, after: bytes, below: Below, names: SystemNames) -> Iterator[str]:
    """Compare the loader's caches: entries of the parent image must stay, and no new one may replace them."""
    old, new = parse_cache(before) if before else {}, parse_cache(after)
    yield from changed_libraries(old, new)
    for name in sorted(new.keys() - old.keys()):
        if fault := library_fault(name, below, names):
            yield fault
        elif odd := [path for path in new[name] if not path.startswith(_LIBRARIES) or "/../" in path]:
            yield f"{name} would be loaded from {odd[0]}"


def _triggers(before: str, after: str, layer: OsLayer) -> Iterator[str]:
    known = set(before.split("\n"))
    for line in after.split("\n"):
        package = line.rpartition(" ")[2].partition("/")[0].partition(":")[0]
        if line not in known and package not in layer.names:
            yield f"a line of another package: {line[:80]!r}"


def _overrides(before: str, after: str, added: Collection[str]) -> Iterator[str]:
    """Faults of dpkg-statoverride, which sets owners and modes: new lines must be about *added* paths."""
    known = set(before.split("\n"))
    for line in after.split("\n"):
        if line and line not in known and " ".join(line.split(" ")[3:]) not in added:
            yield f"about a file that the packages do not add: {line[:80]!r}"


def _diversions(before: str, after: str, layer: OsLayer, below: Below) -> Iterator[str]:
    """Faults of diversions, which rename files when dpkg unpacks them.

    Diversions of the parent image must stay. New ones must be of a package in project.json, and must not
    rename a file of the parent image.
    """
    old, new = (set(_triples(text)) for text in (before, after))
    yield from (f"the diversion of {path} is removed" for path, _, _ in sorted(old - new))
    for path, _, package in sorted(new - old):
        if package not in layer.names or path.lstrip("/") in below.tree:
            yield f"a diversion of {path} by {package}"


def _triples(text: str) -> Iterator[tuple[str, str, str]]:
    lines = text.split("\n")
    if lines.pop() or len(lines) % 3:
        raise ValueError("a diversion does not have three lines")
    yield from zip(lines[::3], lines[1::3], lines[2::3], strict=True)


def _has_lines(text: str, lines: str) -> bool:
    """Whether *text* has all *lines* in their order."""
    found: Iterable[str] = iter(text.removesuffix("\n").split("\n"))
    return not lines or all(line in found for line in lines.removesuffix("\n").split("\n"))


def _first(text: str) -> str:
    return text.partition("\n")[0]
