"""Read the output of the runner line by line, while it runs or later. The lines are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torchkiln.model.report import Finding
from torchkiln.smoke import hosts
from torchkiln.smoke.report import finding_of
from torchkiln.util.strict_json import DEPTH, json_of

_MOST = 1000  # maximum checks, and maximum faults; a run may print any number of lines
_NESTING = 6  # levels of JSON that a report and a signed statement add around a line of the runner


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """The parsed output of the runner."""

    host: dict[str, Any] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    findings: dict[str, Finding] = field(default_factory=dict)
    complete: bool = False  # the runner reached its end, so checks without a finding were not selected
    invalid: tuple[str, ...] = ()  # the faults of invalid lines


class OutputReader:
    """Reads the output lines of one run; lines that other programs printed are ignored."""

    def __init__(self) -> None:
        self.host: dict[str, Any] = {}
        self._started: dict[str, None] = {}  # ids of checks, in the order of the lines
        self._findings: dict[str, Finding] = {}
        self._invalid: list[str] = []
        self._complete = False

    def read(self, line: bytes) -> Finding | None:
        """Read one line; return its finding, if it is the first finding of that check."""
        try:
            event = json_of(line, depth=DEPTH - _NESTING)
            kind = event.pop("event")
            if kind == "host" and hosts.fits(event):
                self.host = event
            elif kind == "start":
                if len(self._started) < _MOST:
                    self._started[str(event["id"])] = None
            elif kind == "finding":
                found = _finding(event)
                if found.id not in self._findings and len(self._findings) < _MOST:
                    self._findings[found.id] = found
                    return found
            self._complete = self._complete or kind == "end"
        except ValueError as error:
            if line.startswith(b'{"event"') and len(self._invalid) < _MOST:
                self._invalid.append(str(error))
        except (KeyError, AttributeError, TypeError):
            pass
        return None

    @property
    def output(self) -> RunnerOutput:
        """The parsed output so far."""
        return RunnerOutput(
            self.host, tuple(self._started), dict(self._findings), self._complete, tuple(self._invalid)
        )


def parse_output(stdout: bytes) -> RunnerOutput:
    """Parse the whole output of a runner."""
    reader = OutputReader()
    for line in stdout.splitlines():
        reader.read(line)
    return reader.output


def _finding(event: Mapping[str, Any]) -> Finding:
    """:raises ValueError: *event* does not match the report's schema."""
    return finding_of({field.name: event[field.name] for field in fields(Finding)})
