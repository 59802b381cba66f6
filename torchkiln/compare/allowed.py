"""Applies a list of allowed differences between two images.

    - path: opt/venv/lib/python3[.]\\d+/site-packages/[^/]+[.]dist-info/RECORD
      what: line
      line: '.*[.]pyc,,'
      reason: pip runs with --no-compile

`path` (or `setting`) and `line` are regular expressions that must match completely. `what` is the kind of
difference; with `line` a file is compared line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.compare.files import Difference
from torchkiln.errors import ConfigError
from torchkiln.util import located_yaml
from torchkiln.util.located_yaml import Located
from torchkiln.util.schema import shipped
from torchkiln.util.strict_json import read_file, text_of


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedDifference:
    """An entry: allows differences of kind `what` if `at` matches the path, and `line` the line."""

    at: re.Pattern[str]
    what: str
    line: re.Pattern[str] | None
    reason: str

    def covers(self, found: Difference) -> bool:
        """Whether this entry allows *found*."""
        return (
            self.what == found.what
            and self.at.fullmatch(found.at) is not None
            and (self.line is None or self.line.fullmatch(found.a or found.b) is not None)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sifted:
    """Differences that are not allowed (`left`) and allowed ones, and unused entries (`idle`)."""

    left: tuple[Difference, ...]
    allowed: tuple[tuple[Difference, AllowedDifference], ...]
    idle: tuple[AllowedDifference, ...]


def read(path: Path) -> tuple[AllowedDifference, ...]:
    """Read the list in the file *path*.

    :raises ConfigError: it cannot be read, or is invalid; the message has the line of each fault.
    """
    hint = f"fix {path}; see torchkiln/data/parity.yaml for the format"
    try:
        text = text_of(read_file(path, 4 * located_yaml.MAX_TEXT))
    except ValueError as error:
        raise ConfigError(f"{path}:{str(error).removeprefix('line ')}", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="check the path in --allow") from None
    file = located_yaml.parse(text, name=str(path))
    faults = located_yaml.faults(file, shipped("allowed"))
    if faults:
        raise ConfigError.of(faults, hint=hint)
    entries = [_entry(file, number, faults) for number in range(len(file.data))]
    if faults:
        raise ConfigError.of(faults, hint=hint)
    return tuple(entries)


def sift(found: Iterable[Difference], entries: Sequence[AllowedDifference]) -> Sifted:
    """Split *found* into allowed differences, each with the first entry that covers it, and others."""
    left, allowed = [], []
    for difference in found:
        match = next((entry for entry in entries if entry.covers(difference)), None)
        if match is None:
            left.append(difference)
        else:
            allowed.append((difference, match))
    used = {id(match) for _, match in allowed}
    idle = tuple(entry for entry in entries if id(entry) not in used)
    return Sifted(left=tuple(left), allowed=tuple(allowed), idle=idle)


def compares_lines(path: str, entries: Iterable[AllowedDifference]) -> bool:
    """Whether an entry allows single lines of the file *path*, so that its text must be read."""
    return any(entry.what == "line" and entry.at.fullmatch(path) for entry in entries)


def _entry(file: Located, number: int, faults: list[str]) -> AllowedDifference:
    """The entry *number* of the list, made from its values; its faults are added to *faults*."""
    raw = file.data[number]
    if ("path" in raw) == ("setting" in raw):
        faults.append(file.fault((number,), "exactly one of path and setting is required"))
    elif ("setting" in raw) != (raw["what"] == "setting"):
        faults.append(file.fault((number, "what"), "`setting` and `what: setting` require each other"))
    if "line" in raw and raw["what"] != "line":
        faults.append(file.fault((number, "line"), "`line` requires what: line"))
    patterns = {}
    for key in ("path", "setting", "line"):
        try:
            patterns[key] = re.compile(raw.get(key, ""))
        except re.error as error:
            faults.append(file.fault((number, key), f"invalid regular expression: {error}"))
            patterns[key] = re.compile("")
    return AllowedDifference(
        at=patterns["path" if "path" in raw else "setting"],
        what=raw["what"],
        line=patterns["line"] if "line" in raw else None,
        reason=raw["reason"],
    )
