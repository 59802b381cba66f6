"""Defines a range of bytes of a file, and the exception for device code in an unknown format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The bytes from `start` up to, but not including, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class UnknownDeviceCode(Exception):
    """A file has device code in an unknown format; callers do not change the file.

    The message says what is unknown, and at which byte.
    """

    def __init__(self, what: str, at: int) -> None:
        self.what = what
        self.at = at
        super().__init__(f"at byte {at:#x}: {what}")

    def __reduce__(self) -> tuple[type[UnknownDeviceCode], tuple[str, int]]:  # worker processes pickle it
        return UnknownDeviceCode, (self.what, self.at)
