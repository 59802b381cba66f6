"""Debian's control format (deb822) -> its paragraphs, each a mapping from field to value.

dpkg's status, an archive's Packages and machine-readable copyright files are all written in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,200}")
VERSION = re.compile(r"[A-Za-z0-9.+:~-]{1,200}")
INSTALLED = "install ok installed"  # the Status of a package that is there, whole


def paragraphs(lines: Iterable[str], *, repeated: frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    """The paragraphs in *lines*, which end as a file's do or not at all. Names of fields are in lower case.

    A value of several lines keeps them, without the blank that each began with. Of *repeated* fields, which
    may stand twice in a paragraph, the last is told.

    :raises ValueError: a line is none of this format, or a field stands twice; tells which line.
    """
    fields: dict[str, str] = {}
    last = ""
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip()
        if not line:
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if not last:
                raise ValueError(f"line {number}: goes on with a field, and there is none before it")
            fields[last] += "\n" + line[1:]
        elif line[0] != "#":
            name, colon, value = line.partition(":")
            last = name.lower()
            if not colon or not name or " " in name:
                raise ValueError(f"line {number}: no field: {line[:80]!r}")
            if last in fields and last not in repeated:
                raise ValueError(f"line {number}: the field {name[:80]!r} stands twice in one paragraph")
            fields[last] = value.strip()
    if fields:
        yield fields
