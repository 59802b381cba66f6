"""Decisions read from a fuzzer's bytes. When no bytes remain, all results are 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Decisions:
    """A stream of bytes, read as numbers, choices and strings."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, most: int) -> int:
        """A number from 0 to *most*, inclusive."""
        count = (most.bit_length() + 7) // 8
        return int.from_bytes(self.take(count), "little") % (most + 1)

    def choice(self, of: Sequence[T]) -> T:
        """An item of *of*."""
        return of[self.number(len(of) - 1)]

    def take(self, count: int) -> bytes:
        """*count* bytes, or the rest if fewer."""
        found = self._data[self._at : self._at + count]
        self._at += len(found)
        return found

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(len(self._data))
