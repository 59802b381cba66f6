"""A server for the pools of an archive and its snapshots, at the paths of the real services.

/debian/PATH  /debian-security/PATH  /archive/debian/TIME/PATH  /archive/debian-security/TIME/PATH
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.servers.answering import NOT_FOUND, Answer, Answering

_SNAPSHOT = re.compile(r"/archive/(debian|debian-security)/(\d{8}T\d{6}Z)/(.+)")


@dataclass
class DebServer(Answering):
    """`pools` has the present files by path, `snapshots` those of each time by archive, time and path."""

    pools: dict[str, bytes] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # of the next snapshot answers
    requested: list[str] = field(default_factory=list)
    most_at_once: int = 0  # requests to snapshots

    def __post_init__(self) -> None:
        super().__init__(self.answer)
        self._lock, self._running = threading.Lock(), 0

    def answer(self, path: str, _: Mapping[str, str]) -> Answer:
        self.requested.append(path)
        found = _SNAPSHOT.fullmatch(path)
        if found is None:
            data = self.pools.get(path.lstrip("/"))
        else:
            with self._lock:
                self._running += 1
                self.most_at_once = max(self.most_at_once, self._running)
            time.sleep(0.02)
            with self._lock:
                self._running -= 1
                if self.statuses:
                    return *self.statuses.pop(0), b""
            data = self.snapshots.get((found[1], found[2]), {}).get(found[3])
        return NOT_FOUND if data is None else (200, {}, data)
