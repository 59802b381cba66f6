"""Reads vulnerabilities.yaml: known vulnerabilities that are accepted until a date, each with a reason.

    - id: CVE-2026-1234
      package: libfoo1          # optional; without it: in any package
      reason: no image opens the port; upstream's fix is in the next point release
      until: 2026-12-31

Each entry needs a reason and an end date, so that the list is reviewed from time to time.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.sbom.vulnerabilities import AllowedVulnerability
from torchkiln.util import located_yaml
from torchkiln.util.located_yaml import Located
from torchkiln.util.schema import shipped
from torchkiln.util.strict_json import read_file, text_of

MAX_DURATION = timedelta(days=366)  # the end date of an entry is at most this far ahead


def read(path: Path, *, on: date) -> tuple[AllowedVulnerability, ...]:
    """Read the list in the file *path*, on the date *on*.

    :raises ConfigError: it cannot be read, or is invalid; the message has the line of each fault.
    """
    try:
        text = text_of(read_file(path, 4 * located_yaml.MAX_TEXT))
    except ValueError as error:
        raise ConfigError(f"{path}:{str(error).removeprefix('line ')}", hint=_hint(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="check the path in --allow") from None
    return load(text, name=str(path), on=on)


def load(text: str, *, name: str, on: date) -> tuple[AllowedVulnerability, ...]:
    """Read the list in *text*.

    :raises ConfigError: it is invalid; the message has the line of each fault.
    """
    try:
        file = located_yaml.parse(text, name=name)
    except ConfigError as error:
        raise ConfigError(error.message, hint=_hint(name)) from None
    faults = located_yaml.faults(file, shipped("vulnerabilities"))
    if faults:
        raise ConfigError.of(faults, hint=_hint(name))
    found = [_entry(file, number, on, faults) for number in range(len(file.data))]
    _check_unique(file, found, faults)
    if faults:
        raise ConfigError.of(faults, hint=_hint(name))
    return tuple(found)


def _entry(file: Located, number: int, on: date, faults: list[str]) -> AllowedVulnerability:
    """Entry *number*; its faults are added to *faults*."""
    raw = file.data[number]
    until = on
    try:
        until = date.fromisoformat(raw["until"])
    except ValueError:
        faults.append(file.fault((number, "until"), f"{raw['until']!r} is not a valid date"))
    if until > on + MAX_DURATION:
        faults.append(
            file.fault((number, "until"), f"{until} is more than a year ahead; set an earlier date")
        )
    if len(raw["reason"].strip()) < 10:
        faults.append(file.fault((number, "reason"), "is too short; explain why it is acceptable"))
    return AllowedVulnerability(
        id=raw["id"],
        package=raw.get("package"),
        reason=raw["reason"].strip(),
        until=until,
        where=f"{file.name}:{file.lines[number,]}",
    )


def _check_unique(file: Located, found: list[AllowedVulnerability], faults: list[str]) -> None:
    """Reject two entries for the same vulnerability and package: one of the two dates would be ignored."""
    first: dict[tuple[str, str | None], AllowedVulnerability] = {}
    for number, entry in enumerate(found):
        other = first.setdefault((entry.id, entry.package), entry)
        if other is not entry:
            faults.append(file.fault((number,), f"{entry.id}: duplicate entry, first at {other.where}"))


def _hint(where: object) -> str:
    return f"fix {where}; see docs/scan.md for the format"
