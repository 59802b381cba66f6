"""vulnerabilities.yaml → allowances: known faults that an image may have for a while, each with its reason.

    - id: CVE-2026-1234
      package: libfoo1          # without it: in whatever package
      reason: no image of ours opens the port; upstream's fix is in the next point release
      until: 2026-12-31

There is no entry for ever, and none without a reason: a list that only grows is a gate that is open.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.sbom.vulnerabilities import Allowance
from torchkiln.util import located_yaml
from torchkiln.util.located_yaml import Located
from torchkiln.util.schema import shipped
from torchkiln.util.strict_json import read_file, text_of

LONGEST = timedelta(days=366)  # from today


def read(path: Path, *, on: date) -> tuple[Allowance, ...]:
    """The list in the file *path*, on the day *on*.

    :raises ConfigError: it cannot be read, or has faults: each with its line.
    """
    try:
        text = text_of(read_file(path, 4 * located_yaml.MAX_TEXT))
    except ValueError as error:
        raise ConfigError(f"{path}:{str(error).removeprefix('line ')}", hint=_hint(path)) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name the file: --allow FILE") from None
    return load(text, name=str(path), on=on)


def load(text: str, *, name: str, on: date) -> tuple[Allowance, ...]:
    """The list in *text*.

    :raises ConfigError: with every fault.
    """
    try:
        file = located_yaml.parse(text, name=name)
    except ConfigError as error:
        raise ConfigError(error.message, hint=_hint(name)) from None
    faults = located_yaml.faults(file, shipped("vulnerabilities"))
    if faults:
        raise ConfigError.of(faults, hint=_hint(name))
    found = [_entry(file, number, on, faults) for number in range(len(file.data))]
    _doubled(file, found, faults)
    if faults:
        raise ConfigError.of(faults, hint=_hint(name))
    return tuple(found)


def _entry(file: Located, number: int, on: date, faults: list[str]) -> Allowance:
    """Entry *number*; what is wrong with it is added to *faults*."""
    raw = file.data[number]
    until = on
    try:
        until = date.fromisoformat(raw["until"])
    except ValueError:
        faults.append(file.fault((number, "until"), f"{raw['until']!r} is no day of the calendar"))
    if until > on + LONGEST:
        faults.append(
            file.fault((number, "until"), f"{until} is more than a year ahead; look at it again before that")
        )
    if len(raw["reason"].strip()) < 10:
        faults.append(file.fault((number, "reason"), "says nothing; write why it may be"))
    return Allowance(
        id=raw["id"],
        package=raw.get("package"),
        reason=raw["reason"].strip(),
        until=until,
        where=f"{file.name}:{file.lines[number,]}",
    )


def _doubled(file: Located, found: list[Allowance], faults: list[str]) -> None:
    """Of two entries for one thing the earlier end would be passed over in silence."""
    first: dict[tuple[str, str | None], Allowance] = {}
    for number, entry in enumerate(found):
        other = first.setdefault((entry.id, entry.package), entry)
        if other is not entry:
            faults.append(file.fault((number,), f"{entry.id} stands twice, first at {other.where}"))


def _hint(where: object) -> str:
    return f"mend {where}; its form stands in docs/scan.md"
