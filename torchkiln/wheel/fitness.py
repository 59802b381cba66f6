"""Checks that WHEEL and METADATA match the file name and the image's Python and machine. Pure.

The glibc of the image is checked when the lock is made.
"""

from __future__ import annotations

import email.parser
import re
from collections.abc import Iterable
from email.message import Message

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from torchkiln.errors import BadWheel
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.wheel.install import Scheme, WheelName

_KINDS = "|".join(("linux", r"manylinux_2_\d+", *LINUX_AMD64.manylinux.values()))
_PLATFORM = re.compile(f"any|{LINUX_AMD64.wheel_tag(f'(?:{_KINDS})')}")
_MAX_HEADERS = 10_000  # lines; at most 151 in torch 2.7.1's 127 wheels
_BLANK_LINE = re.compile(r"\n\r?\n|\r\r")
_PATCHES = range(100)  # patch releases of a Python; a scheme has only its major and minor version


def check(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> None:
    """Check that WHEEL and METADATA are those of *wheel* and that it supports the Python of *scheme*.

    :raises BadWheel: the files do not match *wheel*, or it does not support that Python.
    """
    if fault := _fault(wheel_file, metadata, wheel, scheme):
        raise BadWheel(wheel.filename, fault)


def _fault(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> str:
    parsed = {"WHEEL": _headers(wheel_file), "METADATA": _headers(metadata)}
    for name, found in parsed.items():
        if isinstance(found, str):
            return f"{name} {found}"
    wheel_headers, fields = (found for found in parsed.values() if not isinstance(found, str))
    format_version = _field(wheel_headers, "Wheel-Version")
    if format_version.split(".")[0] != "1":
        return f"unsupported Wheel-Version: {format_version or 'missing'}; only 1.x is supported"
    name, version = _field(fields, "Name"), _field(fields, "Version")
    if canonicalize_name(name) != canonicalize_name(wheel.distribution) or not wheel.is_of(version):
        return f"inconsistent name or version: METADATA has Name {name!r} and Version {version!r}"
    if not _fits(wheel.tags, scheme.python):
        return f"not a supported wheel on this platform: Python {scheme.python}, {LINUX_AMD64.machine} Linux"
    try:
        tags = [tag for line in wheel_headers.get_all("Tag", []) for tag in parse_tag(str(line).strip())]
    except ValueError:
        return "WHEEL contains an invalid tag"
    if tags and not _fits(tags, scheme.python):
        platform = f"Python {scheme.python}, {LINUX_AMD64.machine} Linux"
        return f"the tags in WHEEL are not supported on this platform ({platform}): {tags[0]}"
    requires = _field(fields, "Requires-Python")
    if not _allows(requires, scheme.python):
        return f"requires a different Python: {scheme.python} not in {requires!r}"
    return ""


def _headers(data: bytes) -> Message | str:
    """The headers, or the fault of the file; like pip, this requires UTF-8 for the whole file."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is not valid UTF-8 (at byte {error.start})"
    blank_line = _BLANK_LINE.search(text)
    end = blank_line.start() if blank_line else len(text)
    if max(text.count("\n", 0, end), text.count("\r", 0, end)) > _MAX_HEADERS:
        return f"has more than {_MAX_HEADERS} header lines"
    return email.parser.HeaderParser().parsestr(text)


def _field(message: Message, key: str) -> str:
    """The value of the header *key*; several values are joined, so that no comparison accepts them."""
    return ", ".join(str(value).strip() for value in message.get_all(key, []))


def _fits(tags: Iterable[Tag], python: str) -> bool:
    """Whether CPython *python* on this platform supports one of *tags*."""
    return any(_python_fits(tag, python) and _PLATFORM.fullmatch(tag.platform) for tag in tags)


def _python_fits(tag: Tag, python: str) -> bool:
    major, minor = (int(part) for part in python.split("."))
    found = re.fullmatch(r"(cp|py)(\d)(\d*)", tag.interpreter)
    if not found or int(found[2]) != major:
        return False
    its_minor = int(found[3]) if found[3] else None
    if tag.abi == f"cp{major}{minor}" or (tag.abi == "none" and found[1] == "cp"):
        return tag.interpreter == f"cp{major}{minor}"
    older = its_minor is None or its_minor <= minor
    return older and (tag.abi, found[1]) in (("none", "py"), ("abi3", "cp"))


def _allows(requires: str, python: str) -> bool:
    """Whether a patch release of *python* satisfies *requires*; an invalid specifier is ignored."""
    try:
        specifier = SpecifierSet(requires)
    except InvalidSpecifier:
        return True
    return any(specifier.contains(f"{python}.{patch}") for patch in _PATCHES)
