"""Prints progress as lines, for logs and for terminals without escape sequences."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchkiln.model.progress import Work
from torchkiln.util.sizes import size

_PARTS = 10  # maximum of lines for a task whose total is known when it begins
_SHORT = 8 << 20  # bytes; fewer are read in less than a second, so no line is printed

#: The kinds of work of which one total is printed for all names, and the first words of its lines.
_COUNTED: Mapping[Work, str] = {"verify": "verified", "read": "read", "packages": "packages configured:"}


@dataclass(slots=True)
class _Count:
    total: int = 0
    done: int = 0
    printed: int = 0  # tenths


class LogLines:
    """An observer that prints a line for each finished layer, and for each tenth of work in `_COUNTED`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._sizes: dict[tuple[Work, str], int] = {}
        self._counts: dict[Work, _Count] = {}
        self._guard = threading.Lock()

    def begin(self, work: Work, name: str, total: int) -> None:
        with self._guard:
            self._sizes[work, name] = total
            if work in _COUNTED:
                count = self._counts.setdefault(work, _Count())
                count.total += total
                count.printed = _PARTS * count.done // max(count.total, 1)

    def advance(self, work: Work, name: str, count: int) -> None:
        if work not in _COUNTED:
            return
        with self._guard:
            found = self._counts[work]
            found.done += count
            parts = _PARTS * found.done // max(found.total, 1)
            if parts <= found.printed or (work != "packages" and found.total < _SHORT):
                return
            found.printed = parts
            shown = size if work != "packages" else str
            self._say(f"{_COUNTED[work]} {shown(found.done)} of {shown(found.total)}")

    def end(self, work: Work, name: str) -> None:
        total = self._sizes.get((work, name), 0)
        if work == "convert":
            self._say(f"layer {name}: {size(total)} of wheels")
        elif work == "toolkit":
            self._say(f"layer {name}: from {size(total)} of archives")
        elif work == "compress":
            self._say(f"layer {name}: {size(total)} compressed")
        elif work == "push":
            self._say(f"{name[:19]}: {size(total)} in the registry")
        elif work == "step":
            self._say(name)
