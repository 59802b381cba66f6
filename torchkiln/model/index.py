"""What a lock asks of the package indexes, and what an index tells of a release: its files and METADATA."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.errors import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A wheel of the index `pytorch` that is not looked for: who asks knows its hash and what it asks for."""

    name: str  # normalized
    version: str
    filename: str
    sha256: str  # hex
    requires: tuple[str, ...]  # PEP 508


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """One environment, asked for by requirement."""

    requirements: tuple[str, ...]  # PEP 508
    constraints: tuple[str, ...]  # PEP 508
    python: str  # "3.11"
    glibc: tuple[int, int]  # of the image's OS, (2, 36)
    as_of: str  # ISO date: files uploaded on that day or later do not take part
    keep: tuple[tuple[str, str], ...]  # (name, version) of the previous lock, kept where possible
    bound: tuple[str, ...]  # packages that come from the index `pytorch` and from nowhere else
    given: tuple[Given, ...] = ()  # of these neither an index nor a requirement is asked


def variable_of(name: str) -> str:
    """The environment variable that says where the files of package *name* lie that no index has."""
    return f"TORCHKILN_INDEX_{re.sub('[^A-Z0-9]+', '_', name.upper())}"


METADATA_LIMIT = 1 << 20  # bytes; torch's has forty thousand
MOST_REQUIREMENTS = 5_000  # of one wheel; a thousand are known


@dataclass(frozen=True, kw_only=True, slots=True)
class FileAt:
    """One file of an index and where it lies now."""

    filename: str
    url: str = field(repr=False)
    size: int | None  # bytes; None where the index does not tell
    sha256: str  # hex
    yanked: str | None = None  # the reason, which may be empty; None: it is not


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelMetadata:
    """Of a wheel's METADATA what decides whether and with what it can be installed."""

    requires_python: str  # "" where it tells none
    requires: tuple[str, ...]  # PEP 508, as they stand there
    version: str = ""
    name: str = ""


def read_metadata(data: bytes) -> WheelMetadata:
    """METADATA as an installer reads it.

    :raises ValueError: it is too long, not UTF-8, or asks for more than any wheel does; a sentence.
    """
    if len(data) > METADATA_LIMIT:
        raise ValueError(f"METADATA has more than {METADATA_LIMIT} bytes")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("METADATA is not UTF-8") from None
    # The description may take most of it, and is of no interest.
    head = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    if len(re.findall(rb"^requires-dist[ \t]*:", head, re.IGNORECASE | re.MULTILINE)) > MOST_REQUIREMENTS:
        raise ValueError(f"METADATA has more than {MOST_REQUIREMENTS} requirements")
    told = BytesHeaderParser().parsebytes(head)
    return WheelMetadata(
        requires_python=_line(told.get("Requires-Python", "")),
        requires=tuple(_line(one) for one in told.get_all("Requires-Dist", [])),
        version=_line(told.get("Version", "")),
        name=_line(told.get("Name", "")),
    )


def differing(a: WheelMetadata, b: WheelMetadata) -> tuple[str, ...]:
    """In which fields two METADATA tell a resolver different things; how they are written does not count."""
    pairs = {
        "Name": (canonicalize_name(a.name), canonicalize_name(b.name)),
        "Version": (_version(a.version), _version(b.version)),
        "Requires-Python": (_specifiers(a.requires_python), _specifiers(b.requires_python)),
        "Requires-Dist": (_requirements(a.requires), _requirements(b.requires)),
    }
    return tuple(name for name, (one, other) in pairs.items() if one != other)


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def _specifiers(text: str) -> str:
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        return text


def _requirements(lines: Iterable[str]) -> frozenset[str]:
    found = set()
    for line in lines:
        try:
            found.add(str(Requirement(line)))
        except InvalidRequirement:
            found.add(line)
    return frozenset(found)


def _line(value: object) -> str:
    """A field's value on one line, without what would steer a terminal: it is going to be printed."""
    return printable(" ".join(str(value).split()))
