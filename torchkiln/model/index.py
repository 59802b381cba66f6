"""Defines requests to the package indexes and their results: files and METADATA."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser

from torchkiln.errors import printable
from torchkiln.model.platform import LINUX_AMD64, Platform


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownWheel:
    """A wheel of the index `pytorch` whose hash and requirements are known, so that no index is queried."""

    name: str  # normalized
    version: str
    filename: str
    sha256: str  # hex
    requires: tuple[str, ...]  # PEP 508


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalWheel:
    """A wheel that is on no index but may be chosen; preferred to an index's wheel of the same version."""

    name: str  # normalized
    version: str
    filename: str
    sha256: str  # hex
    size: int
    requires_python: str
    metadata: Callable[[], bytes] = field(repr=False)  # returns METADATA; called if a resolver needs it
    only: bool = False  # no other file of this package may be chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRequest:
    """The requirements of one environment."""

    requirements: tuple[str, ...]  # PEP 508
    constraints: tuple[str, ...]  # PEP 508
    python: str  # "3.11"
    glibc: tuple[int, int]  # of the image's OS, (2, 36)
    as_of: str  # ISO date: files uploaded on that day or later are ignored
    keep: tuple[tuple[str, str], ...]  # (name, version) of the previous lock, kept where possible
    bound: tuple[str, ...]  # packages that come only from the index `pytorch`
    known: tuple[KnownWheel, ...] = ()  # no index is queried for these
    local: tuple[LocalWheel, ...] = ()  # wheels that fit the image, at most one of each version
    # record paths and NVIDIA's libraries; not for projects, whose seal would depend on the mirror
    image: bool = False
    platform: Platform = LINUX_AMD64


METADATA_LIMIT = 1 << 20  # bytes; torch's has 40,000
MAX_REQUIREMENTS = 5_000  # of one wheel; the largest known number is 1,000
MAX_FIELD = 4_000  # characters of a field; each number in it then has fewer than Python's 4,300 digits


@dataclass(frozen=True, kw_only=True, slots=True)
class FileAt:
    """One file of an index and its present URL."""

    filename: str
    url: str = field(repr=False)
    size: int | None  # bytes; None: the index does not say
    sha256: str  # hex
    yanked: str | None = None  # the reason, which may be empty; None: not yanked


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelMetadata:
    """The fields of a wheel's METADATA that a resolver uses."""

    requires_python: str  # "": none
    requires: tuple[str, ...]  # PEP 508, as written
    version: str = ""
    name: str = ""


def read_metadata(data: bytes) -> WheelMetadata:
    """METADATA as an installer reads it.

    :raises ValueError: it or a field is too long, it is not UTF-8, or has too many requirements.
    """
    if len(data) > METADATA_LIMIT:
        raise ValueError(f"METADATA has more than {METADATA_LIMIT} bytes")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("METADATA is not UTF-8") from None
    # The description after the headers is not needed.
    head = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[0]
    if len(re.findall(rb"^requires-dist[ \t]*:", head, re.IGNORECASE | re.MULTILINE)) > MAX_REQUIREMENTS:
        raise ValueError(f"METADATA has more than {MAX_REQUIREMENTS} requirements")
    headers = BytesHeaderParser().parsebytes(head)
    return WheelMetadata(
        requires_python=_line(headers.get("Requires-Python", "")),
        requires=tuple(_line(value) for value in headers.get_all("Requires-Dist", [])),
        version=_line(headers.get("Version", "")),
        name=_line(headers.get("Name", "")),
    )


def _line(value: object) -> str:
    """A field's value on one line, safe to print."""
    if len(text := " ".join(str(value).split())) > MAX_FIELD:
        raise ValueError(f"METADATA has a field of more than {MAX_FIELD} characters: {text[:80]}…")
    return printable(text)
