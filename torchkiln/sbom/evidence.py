"""Parses the package metadata in an image's layers.

Python distributions are described in `*.dist-info/METADATA`, OS packages in dpkg's status, their licences in
`usr/share/doc/*/copyright`, the wheels in /etc/torchkiln/image.json and project.json. All of this comes from
the image, so it can be forged or broken: invalid metadata is an error, and is not skipped.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta
from packaging.metadata import parse_email
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.errors import VerificationFailed, printable
from torchkiln.model.project import PROJECT_JSON
from torchkiln.model.recipe import PREFIX
from torchkiln.sbom.licences import Licence, of_debian, of_expression, of_words
from torchkiln.util import codec
from torchkiln.util.deb822 import INSTALLED, PACKAGE, VERSION, paragraphs
from torchkiln.util.strict_json import json_of

IMAGE_JSON = "etc/torchkiln/image.json"
_STATUS = "var/lib/dpkg/status"
_METADATA = re.compile(r"(?P<place>.*)/[^/]+\.(dist-info/METADATA|egg-info/PKG-INFO|egg-info)")
_COPYRIGHT = re.compile(r"usr/share/doc/(?P<package>[^/]+)/copyright")
_NEVER_LINKS = re.compile(r".*\.(dist-info|egg-info)(/METADATA|/PKG-INFO)?|var/lib/dpkg(/status)?")
_DOC = re.compile(r"usr/share/doc/[^/]+(/copyright)?")
_SITE = re.compile(re.escape(PREFIX.strip("/")) + r"/lib/python3\.\d+/site-packages")
_MACHINE_READABLE = re.compile(r"copyright-format/1\.|/dep5(/|$)", re.MULTILINE)
_ARCHITECTURE = re.compile(r"[a-z0-9-]{1,40}")
_SOURCE = re.compile(r"([a-z0-9][a-z0-9+.-]{0,200})(?: \(([A-Za-z0-9.+:~-]{1,200})\))?")
_REPEATABLE = frozenset({"comment", "copyright"})  # fields that some copyright files repeat
_MAX_TEXT = 1 << 20  # characters of a package's metadata; the text of a licence has some thousands
_FIELDS, _NAMES = 10_000, 100  # of METADATA, and different names: `parse_email` takes their product in time
_FIELD = re.compile(r"(?<![^\r\n])[^\s:]+(?=:)")  # at the start of a line, as in `email`
_MAX_LICENCES = 1000  # in a copyright file; perl's has thirty
_UNKNOWN = frozenset({"", "UNKNOWN"})  # setuptools wrote UNKNOWN for a missing licence


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    path: str  # of its metadata
    name: str  # normalized
    version: str
    licences: tuple[Licence, ...]

    @property
    def of_a_wheel(self) -> bool:
        """Whether it is in the folder into which wheels are installed; others are vendored copies."""
        return _SITE.fullmatch(posixpath.dirname(posixpath.dirname(self.path))) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPackage:
    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    licences: tuple[Licence, ...]  # from its copyright file, if that is machine-readable
    copyright: str  # the file's path; empty if there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All packages that are installed in an image, by name."""

    distributions: tuple[Distribution, ...]
    packages: tuple[InstalledPackage, ...]
    wheels: Mapping[str, tuple[str, str]]  # in image.json and project.json: name → version, sha256
    archives: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # the same for NVIDIA's toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A wheel or an archive in image.json or project.json, which also has other keys."""

    name: str
    version: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contents:
    """The lists in image.json or project.json; only images with the toolkit have archives."""

    wheels: tuple[_Row, ...]
    archives: tuple[_Row, ...] = ()


def is_evidence(path: str) -> bool:
    """Whether the file or link *path* of a layer is needed for an SBOM."""
    return path in (IMAGE_JSON, PROJECT_JSON) or any(
        name.fullmatch(path) for name in (_METADATA, _DOC, _NEVER_LINKS)
    )


def shortened(path: str, text: str) -> str:
    """*text* without the description, which is the largest part of METADATA and not needed."""
    return text.partition("\n\n")[0] if _METADATA.fullmatch(path) else text


def evidence_of(texts: Mapping[str, str], links: Mapping[str, str]) -> Evidence:
    """Parse the files *texts* by path; *links* are followed only to copyright files.

    :raises VerificationFailed: a file is invalid, or a package is installed twice.
    """
    try:
        if link := min(filter(_NEVER_LINKS.fullmatch, links), default=None):
            raise ValueError(f"{link}: must not be a link")
        distributions = sorted(_distributions(texts), key=lambda dist: (dist.name, dist.path))
        _demand_once(dist.name for dist in distributions if dist.of_a_wheel)
        packages = sorted(_packages(texts, links), key=lambda deb: (deb.name, deb.architecture))
        _demand_once(f"{package.name}:{package.architecture}" for package in packages)
        image, project = (_contents(texts, path) for path in (IMAGE_JSON, PROJECT_JSON))
    except ValueError as error:
        raise VerificationFailed(
            f"the package metadata in the image is invalid: {error}",
            hint="the image was changed after the build; build it again",
        ) from None
    return Evidence(
        distributions=tuple(distributions),
        packages=tuple(packages),
        # a project's wheel replaces the parent image's wheel of the same name
        wheels=_by_name((*image.wheels, *project.wheels)),
        archives=_by_name(image.archives),
    )


def _distributions(texts: Mapping[str, str]) -> Iterator[Distribution]:
    for path, text in texts.items():
        if not _METADATA.fullmatch(path):
            continue
        head = shortened(path, text)
        names = _FIELD.findall(head)
        if len(head) > _MAX_TEXT or len(names) > _FIELDS or len({*names}) > _NAMES or printable(path) != path:
            raise ValueError(f"{path[:200]}: {len(head)} characters, too many fields, or an unprintable path")
        raw, _ = parse_email(head)
        try:
            name = canonicalize_name(raw.get("name", ""), validate=True)
            version = str(Version(raw.get("version", "")))
        except (InvalidName, InvalidVersion) as error:
            raise ValueError(f"{path}: invalid name or version: {str(error)[:120]}") from None
        licences = _python_licences(
            raw.get("license_expression", ""), raw.get("license", ""), raw.get("classifiers", [])
        )
        yield Distribution(path=path, name=name, version=version, licences=licences)


def _python_licences(expression: str, words: str, classifiers: list[str]) -> tuple[Licence, ...]:
    """The licences in License-Expression, else in License, else in the classifiers."""
    if expression:
        return (of_expression(expression) or of_words(expression),)
    if words.strip() not in _UNKNOWN:
        return (of_expression(words.strip()) or of_words(words),)
    return tuple(map(of_words, sorted({name for name in classifiers if name.startswith("License ::")})))


def _packages(texts: Mapping[str, str], links: Mapping[str, str]) -> Iterator[InstalledPackage]:
    copyrights: dict[str, tuple[Licence, ...]] = {}
    for fields in _installed(texts.get(_STATUS, "")):
        name, version = fields.get("package", ""), fields.get("version", "")
        architecture = fields.get("architecture", "")
        source = _SOURCE.fullmatch(fields.get("source", name))
        if not (PACKAGE.fullmatch(name) and VERSION.fullmatch(version) and source):
            raise ValueError(f"{_STATUS}: invalid name, version or source: {name[:80]!r} {version[:80]!r}")
        if not _ARCHITECTURE.fullmatch(architecture):
            raise ValueError(f"{_STATUS}: {name}: invalid architecture: {architecture[:80]!r}")
        path = _copyright(name, texts, links)
        if path not in copyrights:
            copyrights[path] = _debian_licences(texts.get(path, ""))
        yield InstalledPackage(
            name=name,
            version=version,
            architecture=architecture,
            source=source[1],
            source_version=source[2] or version,
            licences=copyrights[path],
            copyright=path,
        )


def _installed(status: str) -> Iterator[Mapping[str, str]]:
    """The installed packages in *status*, the text of dpkg's file."""
    try:
        yield from (fields for fields in paragraphs(status.split("\n")) if fields.get("status") == INSTALLED)
    except ValueError as error:
        raise ValueError(f"{_STATUS}: {error}") from None


def _copyright(package: str, texts: Mapping[str, str], links: Mapping[str, str]) -> str:
    """The path of *package*'s copyright file, which can be a link into another package of the same source."""
    path = f"usr/share/doc/{package}/copyright"
    for _ in range(4):
        folder = posixpath.dirname(path)
        if path in links:
            path = posixpath.normpath(posixpath.join("/", folder, links[path])).lstrip("/")
        elif folder in links:
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(folder), links[folder]))
            path = f"{target.lstrip('/')}/copyright"
    return path if path in texts and _COPYRIGHT.fullmatch(path) else ""


def _debian_licences(text: str) -> tuple[Licence, ...]:
    """The licences in a machine-readable copyright file; () for any other file."""
    if len(text) > _MAX_TEXT or not _MACHINE_READABLE.search(text[:2000]):
        return ()
    try:
        first, *others = paragraphs(text.split("\n"), repeated=_REPEATABLE)
    except ValueError:  # maintainers write these files; Debian's build does not check them
        return ()
    if not _MACHINE_READABLE.search(first.get("format", "")):
        return ()
    full_texts: dict[str, str] = {}
    used: list[str] = []
    for fields in (first, *others):
        synopsis, _, words = fields.get("license", "").partition("\n")
        if synopsis and words:
            full_texts.setdefault(" ".join(synopsis.split()), _unfolded(words))
        if synopsis and (fields is first or "files" in fields):
            used.append(synopsis)
    names = sorted({" ".join(name.split()) for name in used})
    return tuple(of_debian(name, full_texts) for name in names) if len(names) <= _MAX_LICENCES else ()


def _unfolded(words: str) -> str:
    """The text of a field, in which a single dot means an empty line."""
    return "\n".join("" if line.strip() == "." else line for line in words.split("\n"))


def _contents(texts: Mapping[str, str], path: str) -> _Contents:
    """The packages that image.json or project.json lists; none if the image has no file *path*."""
    if path not in texts:
        return _Contents(wheels=())
    try:
        return codec.typed(_Contents, json_of(texts[path].encode()))
    except ValueError as error:
        raise ValueError(f"{path}: invalid: {str(error)[:120]}") from None


def _by_name(rows: Iterable[_Row]) -> dict[str, tuple[str, str]]:
    return {row.name: (row.version, row.sha256) for row in rows}


def _demand_once(names: Iterable[str]) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise ValueError(f"{name} is installed twice")
