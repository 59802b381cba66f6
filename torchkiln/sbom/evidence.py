"""Texts out of an image's layers -> Evidence: what is installed, by its own account.

A Python distribution tells of itself in `*.dist-info/METADATA`; the OS's packages are in dpkg's status,
their licences in `usr/share/doc/*/copyright`; what the wheels were, /etc/torchkiln/image.json tells. All of
it comes from the image, so all of it may be forged or broken: what names no package is refused, not skipped.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.metadata import parse_email
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.errors import VerificationFailed, printable
from torchkiln.model.recipe import PREFIX
from torchkiln.sbom.licences import Licence, of_debian, of_expression, of_words
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
_HEX = re.compile(r"[0-9a-f]{64}")
_UNREAD = frozenset({"comment", "copyright"})  # fields of a copyright file, in which somebody wrote two
_ONE = {"wheels": "a wheel", "archives": "an archive"}
_FIRST = 8  # faults that are told
_LONGEST = 1 << 20  # bytes of what a package says of itself; a licence's whole text has some thousands
_MOST = 1000  # licences that one copyright file names; perl's names thirty
_UNKNOWN = frozenset({"", "UNKNOWN"})  # what setuptools wrote where nobody had said anything


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """An installed Python distribution."""

    path: str  # of what it says of itself
    name: str  # normalized
    version: str
    licences: tuple[Licence, ...]

    @property
    def of_a_wheel(self) -> bool:
        """Whether it lies where wheels are installed; another came inside of something."""
        return _SITE.fullmatch(posixpath.dirname(posixpath.dirname(self.path))) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """An installed package of the OS."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    licences: tuple[Licence, ...]  # of its copyright file, if that is machine-readable
    copyright: str  # the file's path; empty where it has none
    copyright_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is installed in an image, each by name."""

    distributions: tuple[Distribution, ...]
    packages: tuple[Installed, ...]
    wheels: Mapping[str, tuple[str, str]]  # what image.json says of them: name → version, sha256
    archives: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # the same of NVIDIA's toolkit


def is_evidence(path: str) -> bool:
    """Whether the file or link *path* of a layer is read for an SBOM."""
    return path == IMAGE_JSON or any(one.fullmatch(path) for one in (_METADATA, _DOC, _NEVER_LINKS))


def shortened(path: str, text: str) -> str:
    """*text* without what is not read of it: a description, which is most of a METADATA."""
    return text.partition("\n\n")[0] if _METADATA.fullmatch(path) else text


def evidence_of(texts: Mapping[str, str], links: Mapping[str, str]) -> Evidence:
    """What the files *texts*, by path, say; *links* may be on the way to copyright files, and nowhere else.

    :raises VerificationFailed: one of them cannot be what it should be, or two speak for one package.
    """
    faults = [f"{path}: is a link" for path in sorted(links) if _NEVER_LINKS.fullmatch(path)]
    distributions = tuple(sorted(_distributions(texts, faults), key=lambda one: (one.name, one.path)))
    packages = tuple(sorted(_packages(texts, links, faults), key=lambda one: (one.name, one.architecture)))
    wheels, archives = (_told(texts, key, faults) for key in ("wheels", "archives"))
    at_its_place = [one.name for one in distributions if one.of_a_wheel]
    faults += [f"{name} is installed twice" for name in _twice(at_its_place)]
    of_the_os = [f"{one.name}:{one.architecture}" for one in packages]
    faults += [f"{_STATUS}: {name} is installed twice" for name in _twice(of_the_os)]
    if faults:
        more = [f"and {len(faults) - _FIRST} more"] if len(faults) > _FIRST else []
        raise VerificationFailed(
            "\n".join(["what the image says of its packages cannot be used:", *faults[:_FIRST], *more]),
            hint="the image is not as it was built; build it again",
        )
    return Evidence(distributions=distributions, packages=packages, wheels=wheels, archives=archives)


def _distributions(texts: Mapping[str, str], faults: list[str]) -> Iterator[Distribution]:
    for path, text in texts.items():
        if not _METADATA.fullmatch(path):
            continue
        head = shortened(path, text)
        if len(head) > _LONGEST or printable(path) != path:
            faults.append(f"{path[:200]}: says {len(head)} characters, or lies where nothing can be shown")
            continue
        raw, _ = parse_email(head)
        try:
            name = canonicalize_name(raw.get("name", ""), validate=True)
            version = str(Version(raw.get("version", "")))
        except (InvalidName, InvalidVersion) as error:
            faults.append(f"{path}: names no package: {str(error)[:120]}")
            continue
        licences = _said_in_python(
            raw.get("license_expression", ""), raw.get("license", ""), raw.get("classifiers", [])
        )
        yield Distribution(path=path, name=name, version=version, licences=licences)


def _said_in_python(expression: str, words: str, classifiers: list[str]) -> tuple[Licence, ...]:
    """The field made for it; else the older one; else what the package calls itself in an index's list."""
    if expression:
        return (of_expression(expression) or of_words(expression),)
    if words.strip() not in _UNKNOWN:
        return (of_expression(words.strip()) or of_words(words),)
    listed = sorted({one for one in classifiers if one.startswith("License ::")})
    return tuple(of_words(one) for one in listed)


def _packages(texts: Mapping[str, str], links: Mapping[str, str], faults: list[str]) -> Iterator[Installed]:
    copyrights: dict[str, tuple[Licence, ...]] = {}
    try:
        for fields in paragraphs(texts.get(_STATUS, "").split("\n")):
            if fields.get("status") != INSTALLED:
                continue
            name, version = fields.get("package", ""), fields.get("version", "")
            architecture = fields.get("architecture", "")
            source = _SOURCE.fullmatch(fields.get("source", name))
            if not (PACKAGE.fullmatch(name) and VERSION.fullmatch(version) and source):
                faults.append(f"{_STATUS}: names no package: {name[:80]!r} {version[:80]!r}")
                continue
            if not _ARCHITECTURE.fullmatch(architecture):
                faults.append(f"{_STATUS}: {name}: no architecture: {architecture[:80]!r}")
                continue
            path = _copyright(name, texts, links)
            if path not in copyrights:
                copyrights[path] = _said_in_debian(texts.get(path, ""))
            yield Installed(
                name=name,
                version=version,
                architecture=architecture,
                source=source[1],
                source_version=source[2] or version,
                licences=copyrights[path],
                copyright=path,
                copyright_sha256=hashlib.sha256(texts[path].encode()).hexdigest() if path else "",
            )
    except ValueError as error:
        faults.append(f"{_STATUS}: {error}")


def _copyright(package: str, texts: Mapping[str, str], links: Mapping[str, str]) -> str:
    """Where *package*'s copyright file is: its documents may be those of another package of its source."""
    path = f"usr/share/doc/{package}/copyright"
    for _ in range(4):
        folder = posixpath.dirname(path)
        if path in links:
            path = posixpath.normpath(posixpath.join("/", folder, links[path])).lstrip("/")
        elif folder in links:
            target = posixpath.normpath(posixpath.join("/", posixpath.dirname(folder), links[folder]))
            path = f"{target.lstrip('/')}/copyright"
    return path if path in texts and _COPYRIGHT.fullmatch(path) else ""


def _said_in_debian(text: str) -> tuple[Licence, ...]:
    """Each licence that a machine-readable copyright file names for files; nothing of another file."""
    if len(text) > _LONGEST or not _MACHINE_READABLE.search(text[:2000]):
        return ()
    try:
        first, *others = paragraphs(text.split("\n"), repeated=_UNREAD)
    except ValueError:  # people write these files, and nobody's build fails by them
        return ()
    if not _MACHINE_READABLE.search(first.get("format", "")):
        return ()
    spelled: dict[str, str] = {}
    named: list[str] = []
    for fields in (first, *others):
        synopsis, _, words = fields.get("license", "").partition("\n")
        if synopsis and words:
            spelled.setdefault(" ".join(synopsis.split()), _unfolded(words))
        if synopsis and (fields is first or "files" in fields):
            named.append(synopsis)
    names = sorted({" ".join(one.split()) for one in named})
    return tuple(of_debian(one, spelled) for one in names) if len(names) <= _MOST else ()


def _unfolded(words: str) -> str:
    """A field's text: a dot stands for an empty line."""
    return "\n".join("" if line.strip() == "." else line for line in words.split("\n"))


def _told(texts: Mapping[str, str], key: str, faults: list[str]) -> dict[str, tuple[str, str]]:
    """What image.json has under *key*; images without archives of NVIDIA's say nothing of them."""
    if IMAGE_JSON not in texts:
        return {}
    try:
        told = json_of(texts[IMAGE_JSON].encode())
        rows = told["wheels"] if key == "wheels" else told.get(key, ())
        found = {str(one["name"]): (str(one["version"]), str(one["sha256"])) for one in rows}
        if not all(_HEX.fullmatch(sha256) for _, sha256 in found.values()):
            raise ValueError(f"a hash of {_ONE[key]} is none")
    except (ValueError, LookupError, TypeError) as error:
        faults.append(f"{IMAGE_JSON}: is not what torchkiln writes: {str(error)[:120]}")
        return {}
    return found


def _twice(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
