"""Read allowed_unresolved.json: the (file, soname) pairs that may stay unresolved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("allowed_unresolved.json")


def allowed_unresolved(
    wheels: Iterable[Mapping[str, Any]], python: str, listed: Path = LIST
) -> list[list[str]]:
    """Sorted pairs that are unresolved in an image with *wheels*.

    An entry applies if one of its versions of its distribution is installed.
    """
    installed = {wheel["name"]: wheel["version"].split("+")[0] for wheel in wheels}
    entries = [
        entry
        for entry in json.loads(listed.read_bytes())["entries"]
        if installed.get(entry["distribution"]) in entry["versions"]
    ]
    return sorted([file, soname] for file, soname in _pairs(entries, python))


def optional(
    pairs: Iterable[Sequence[str]], wheels: Iterable[Mapping[str, Any]], python: str, listed: Path = LIST
) -> list[list[str]]:
    """The *pairs* that may be unresolved or not, in any version of the distribution that has the file.

    Files and sonames of these entries are patterns of fnmatch.
    """
    installed = {wheel["name"] for wheel in wheels}
    entries = [
        entry for entry in json.loads(listed.read_bytes())["optional"] if entry["distribution"] in installed
    ]
    patterns = list(_pairs(entries, python))
    return [list(pair) for pair in pairs if any(_matches(pair, pattern) for pattern in patterns)]


def _pairs(entries: Iterable[Mapping[str, Any]], python: str) -> Iterator[tuple[str, str]]:
    site = f"lib/python{'.'.join(python.split('.')[:2])}/site-packages"
    for entry in entries:
        for file, needed in entry["files"].items():
            yield from ((f"{site}/{file}", soname) for soname in needed)


def _matches(pair: Sequence[str], pattern: tuple[str, str]) -> bool:
    same_depth = pair[0].count("/") == pattern[0].count("/")  # * of fnmatch matches a slash, too
    return same_depth and fnmatchcase(pair[0], pattern[0]) and fnmatchcase(pair[1], pattern[1])
