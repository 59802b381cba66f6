"""WHEEL and METADATA → whether this is the wheel of its name, and one for this image. Pure.

Which glibc an image has the lock looked at; here it is the Python and the kind of machine.
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
_MOST_HEADERS = 10_000  # lines; the most among torch 2.7.1's 127 wheels are 151
_ONE_LINE = str.maketrans("\r\n", "  ")  # a header may be folded
_BLANK_LINE = re.compile(r"\n\r?\n|\r\r")
_PATCHES = range(100)  # of a Python, of which a scheme tells major and minor


def check(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> None:
    """WHEEL and METADATA are those of *wheel*, and it runs where *scheme* says.

    :raises BadWheel: if not.
    """
    if fault := _fault(wheel_file, metadata, wheel, scheme):
        raise BadWheel(wheel.filename, fault)


def _fault(wheel_file: bytes, metadata: bytes, wheel: WheelName, scheme: Scheme) -> str:
    parsed = {"WHEEL": _headers(wheel_file), "METADATA": _headers(metadata)}
    for name, found in parsed.items():
        if isinstance(found, str):
            return f"{name} {found}"
    told, fields = (found for found in parsed.values() if not isinstance(found, str))
    format_version = _field(told, "Wheel-Version")
    if format_version.split(".")[0] != "1":
        return f"Wheel-Version {format_version or 'missing'}; only 1.x is known"
    name, version = _field(fields, "Name"), _field(fields, "Version")
    if canonicalize_name(name) != canonicalize_name(wheel.distribution) or not wheel.is_of(version):
        return f"METADATA is that of {name} {version}".translate(_ONE_LINE)
    if not _fits(wheel.tags, scheme.python):
        return f"its tags are not for Python {scheme.python} on {LINUX_AMD64.machine} Linux"
    try:
        tags = [tag for line in told.get_all("Tag", []) for tag in parse_tag(str(line).strip())]
    except ValueError:
        return "WHEEL has a tag that is none"
    if tags and not _fits(tags, scheme.python):
        here = f"Python {scheme.python} on {LINUX_AMD64.machine} Linux"
        return f"WHEEL's tags are not for {here}: {tags[0]}"
    requires = _field(fields, "Requires-Python")
    if not _allows(requires, scheme.python):
        return f"it requires Python {requires}, the image has {scheme.python}"
    return ""


def _headers(data: bytes) -> Message | str:
    """The header, or what is wrong with the file; as pip reads it, which demands UTF-8 of the whole."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (at byte {error.start})"
    end = _end_of_header(text)
    if max(text.count("\n", 0, end), text.count("\r", 0, end)) > _MOST_HEADERS:
        return f"has more than {_MOST_HEADERS} lines before its text"
    return email.parser.HeaderParser().parsestr(text)


def _end_of_header(text: str) -> int:
    found = _BLANK_LINE.search(text)
    return found.start() if found else len(text)


def _field(message: Message, key: str) -> str:
    """The value; two of a kind are told together, and so are neither's."""
    return ", ".join(str(value).strip() for value in message.get_all(key, []))


def _fits(tags: Iterable[Tag], python: str) -> bool:
    """Whether CPython *python* on our platform takes one of *tags*."""
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
    """Whether some patch release of *python* satisfies *requires*; what is no specifier asks for nothing."""
    try:
        wanted = SpecifierSet(requires)
    except InvalidSpecifier:
        return True
    return any(wanted.contains(f"{python}.{patch}") for patch in _PATCHES)
