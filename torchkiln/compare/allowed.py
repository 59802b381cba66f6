"""A list of allowed differences → which of those found it allows, which not, and which entries are idle.

    - path: opt/venv/lib/python3[.]\\d+/site-packages/[^/]+[.]dist-info/RECORD
      what: line
      line: '.*[.]pyc,,'
      reason: pip was told to make none

`path` (or `setting`) and `line` are regular expressions that must fit the whole. `what` is a kind of
difference; `line` compares a file line by line.
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
class Allowance:
    """One entry: differences of kind `what` at places that `at` fits; of lines those that `line` fits."""

    at: re.Pattern[str]
    what: str
    line: re.Pattern[str] | None
    reason: str

    def covers(self, found: Difference) -> bool:
        """Whether it allows *found*."""
        return (
            self.what == found.what
            and self.at.fullmatch(found.at) is not None
            and (self.line is None or self.line.fullmatch(found.a or found.b) is not None)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sifted:
    """Differences by what a list says of them, and the entries of the list that allowed nothing."""

    left: tuple[Difference, ...]
    allowed: tuple[tuple[Difference, Allowance], ...]
    idle: tuple[Allowance, ...]


def read(path: Path) -> tuple[Allowance, ...]:
    """The list in the file *path*.

    :raises ConfigError: it cannot be read, or has faults: each with its line.
    """
    hint = f"mend {path}; `diff --help` says where its form stands"
    try:
        text = text_of(read_file(path, 4 * located_yaml.MAX_TEXT))
    except ValueError as error:
        raise ConfigError(f"{path}:{str(error).removeprefix('line ')}", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name the file: --allow FILE") from None
    file = located_yaml.parse(text, name=str(path))
    faults = located_yaml.faults(file, shipped("allowed"))
    if faults:
        raise ConfigError.of(faults, hint=hint)
    found = [_entry(file, number, faults) for number in range(len(file.data))]
    if faults:
        raise ConfigError.of(faults, hint=hint)
    return tuple(found)


def sift(found: Iterable[Difference], allowances: Sequence[Allowance]) -> Sifted:
    """*found* by what *allowances* say; the first entry that fits allows."""
    left, allowed = [], []
    for difference in found:
        by = next((entry for entry in allowances if entry.covers(difference)), None)
        if by is None:
            left.append(difference)
        else:
            allowed.append((difference, by))
    used = {id(by) for _, by in allowed}
    idle = tuple(entry for entry in allowances if id(entry) not in used)
    return Sifted(left=tuple(left), allowed=tuple(allowed), idle=idle)


def by_lines(path: str, allowances: Iterable[Allowance]) -> bool:
    """Whether some entry speaks of single lines of the file *path*, so that its text is wanted."""
    return any(entry.what == "line" and entry.at.fullmatch(path) for entry in allowances)


def _entry(file: Located, number: int, faults: list[str]) -> Allowance:
    """Entry *number*; what is wrong with it is added to *faults*."""
    raw = file.data[number]
    if ("path" in raw) == ("setting" in raw):
        faults.append(file.fault((number,), "one of path and setting must stand there"))
    elif ("setting" in raw) != (raw["what"] == "setting"):
        faults.append(file.fault((number, "what"), "`setting` goes with what: setting, and only with that"))
    if "line" in raw and raw["what"] != "line":
        faults.append(file.fault((number, "line"), "`line` goes with what: line only"))
    patterns = {}
    for key in ("path", "setting", "line"):
        try:
            patterns[key] = re.compile(raw.get(key, ""))
        except re.error as error:
            faults.append(file.fault((number, key), f"no regular expression: {error}"))
            patterns[key] = re.compile("")
    return Allowance(
        at=patterns["path" if "path" in raw else "setting"],
        what=raw["what"],
        line=patterns["line"] if "line" in raw else None,
        reason=raw["reason"],
    )
