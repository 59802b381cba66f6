"""Counts packages in the output of apt and dpkg while they are installed."""

from __future__ import annotations

import re

from torchkiln.model.progress import Observer

_PLANNED = re.compile(r"\d+ upgraded, (?P<count>\d{1,6}) newly installed, .*")
_CONFIGURED = "Setting up "


class PackageCount:
    """Reports, as the work "packages", how many of the packages that apt has announced are configured.

    apt announces the essential packages of a base first, and the others after these are configured.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def read(self, line: str) -> None:
        """Take one *line* of the output."""
        if found := _PLANNED.fullmatch(line):
            self._observer.begin("packages", "packages", int(found["count"]))
        elif line.startswith(_CONFIGURED):
            self._observer.advance("packages", "packages", 1)
