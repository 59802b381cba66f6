"""Reads `pythons` of matrix.yaml: systems with a standalone CPython instead of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.model.cell import PythonArchive
from torchkiln.model.operating_system import SYSTEMS, with_python
from torchkiln.util.schema import Path, shown

_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_OLDEST = 10  # the oldest minor version that torchkiln's byte-code compiler supports
_URL = re.compile(r"https?://[^/?#\s]+/[^?#\s]+")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,240}\.(tar\.gz|tgz)")


@dataclass(frozen=True, kw_only=True, slots=True)
class OsChoice:
    """An operating system and its Python: the one that it ships, or a standalone build."""

    name: str  # "debian12", "python312-debian12"
    python: str  # "3.11"
    standalone: PythonArchive | None = None
    location: str = ""  # of the archive: a path relative to the matrix, or a URL


def choices(data: Iterable[Mapping[str, str]]) -> Iterator[OsChoice]:
    """The systems of *data*, which has no `faults`."""
    for entry in data:
        location = entry["archive"]
        archive = PythonArchive(filename=_filename(location), sha256=entry["sha256"])
        name = with_python(entry["os"], entry["python"])
        yield OsChoice(name=name, python=entry["python"], standalone=archive, location=location)


def names(data: object) -> list[str]:
    """The names of the systems in *data*, which may be invalid."""
    return [with_python(os, python) for _, os, python in _entries(data)]


def faults(data: object) -> Iterator[tuple[Path, str]]:
    """Faults that the schema cannot find, by path. Skips values that violate the schema."""
    seen: set[str] = set()
    for index, os, python in _entries(data):
        at = ("pythons", index)
        if os in SYSTEMS and python == SYSTEMS[os].python:
            yield (*at, "python"), f"{os} has Python {python} already; remove this entry"
        elif int(python.partition(".")[2]) < _OLDEST:
            yield (*at, "python"), f"Python {python} is not supported; the oldest is 3.{_OLDEST}"
        if (name := with_python(os, python)) in seen:
            yield at, f"duplicate entry: Python {python} of {os}"
        seen.add(name)
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        location = entry.get("archive") if isinstance(entry, dict) else None
        if isinstance(location, str) and (fault := _fault(location)):
            yield ("pythons", index, "archive"), fault


def _entries(data: object) -> Iterator[tuple[int, str, str]]:
    """Index, os and python of each entry that has both."""
    for index, entry in enumerate(data if isinstance(data, list) else ()):
        values: dict[str, Any] = entry if isinstance(entry, dict) else {}
        os, python = values.get("os"), values.get("python")
        if isinstance(os, str) and isinstance(python, str) and _PYTHON.fullmatch(python):
            yield index, os, python


def _fault(location: str) -> str:
    """Why *location* cannot be the location of an archive; empty: it can be."""
    if "://" in location and not _URL.fullmatch(location):
        # The URL is not shown: it may contain a password or a token.
        return "must be a path, or an http(s) URL without a query"
    if not _FILE.fullmatch(_filename(location)):
        return f"{shown(_filename(location))} is not the name of a .tar.gz file"
    return ""


def _filename(location: str) -> str:
    name = location.rpartition("/")[2]
    # GitHub writes the + in the names of such archives as %2B.
    return re.sub(r"%2[bB]", "+", name) if "://" in location else name
