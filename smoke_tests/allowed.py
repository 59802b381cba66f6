"""Read allowed_unresolved.json: the (file, soname) pairs that may stay unresolved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("allowed_unresolved.json")


def packages_folder(prefix: Path, python: str) -> str:
    """The folder of the packages for Python *python*, "3.11.2", relative to *prefix*.

    Symbolic links are resolved: if the image's Python is not the base's, lib/python3.12 is a link to
    lib/python3.11.

    :raises ValueError: the folder is not below *prefix*.
    """
    folder = prefix / f"lib/python{'.'.join(python.split('.')[:2])}/site-packages"
    return folder.resolve().relative_to(prefix.resolve()).as_posix()


def allowed_unresolved(
    wheels: Iterable[Mapping[str, Any]], site: str, listed: Path = LIST
) -> list[list[str]]:
    """Sorted pairs that may be unresolved in an image with *wheels*, whose packages are in the folder *site*.

    An entry applies if one of its versions of its distribution is installed.
    """
    installed = {wheel["name"]: wheel["version"].split("+")[0] for wheel in wheels}
    entries = [
        entry
        for entry in json.loads(listed.read_bytes())["entries"]
        if installed.get(entry["distribution"]) in entry["versions"]
    ]
    return sorted([file, soname] for file, soname in _pairs(entries, site))


def optional(
    pairs: Iterable[Sequence[str]], wheels: Iterable[Mapping[str, Any]], site: str, listed: Path = LIST
) -> list[list[str]]:
    """The *pairs* that are allowed, but need not be unresolved, in any version of the file's distribution.

    Files and sonames of these entries are patterns of fnmatch.
    """
    installed = {wheel["name"] for wheel in wheels}
    entries = [
        entry for entry in json.loads(listed.read_bytes())["optional"] if entry["distribution"] in installed
    ]
    patterns = list(_pairs(entries, site))
    return [list(pair) for pair in pairs if any(_matches(pair, pattern) for pattern in patterns)]


def _pairs(entries: Iterable[Mapping[str, Any]], site: str) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for file, needed in entry["files"].items():
            yield from ((f"{site}/{file}", soname) for soname in needed)


def _matches(pair: Sequence[str], pattern: tuple[str, str]) -> bool:
    same_depth = pair[0].count("/") == pattern[0].count("/")  # fnmatch's * matches a slash, too
    return same_depth and fnmatchcase(pair[0], pattern[0]) and fnmatchcase(pair[1], pattern[1])
