"""Parses Debian's control format (deb822) into paragraphs, each a mapping from field to value.

dpkg's status file, Packages indexes and machine-readable copyright files use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,200}")
VERSION = re.compile(r"[A-Za-z0-9.+:~-]{1,200}")
INSTALLED = "install ok installed"  # the Status of a completely installed package


def paragraphs(lines: Iterable[str], *, repeated: frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    """The paragraphs in *lines*, with or without line endings. Field names are in lower case.

    Continuation lines are kept without their leading space. A field in *repeated* may occur more than once
    in a paragraph; its last value is returned.

    :raises ValueError: a line is invalid, or a field is repeated; names the line.
    """
    fields: dict[str, list[str]] = {}
    last = ""
    for number, raw in enumerate(chain(lines, ("",)), 1):
        line = raw.rstrip()
        if not line:
            if fields:
                yield {name: "\n".join(values) for name, values in fields.items()}
            fields, last = {}, ""
        elif line[0] in " \t":
            if not last:
                raise ValueError(f"line {number}: continuation line without a field before it")
            fields[last].append(line[1:])
        elif line[0] != "#":
            name, colon, value = line.partition(":")
            last = name.lower()
            if not colon or not name or " " in name:
                raise ValueError(f"line {number}: not a field: {line[:80]!r}")
            if last in fields and last not in repeated:
                raise ValueError(f"line {number}: duplicate field {name[:80]!r} in one paragraph")
            fields[last] = [value.strip()]
