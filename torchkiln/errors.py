"""Every way to stop: one class per kind of failure, each with its exit code and a hint.

`cli.main` is the only place that catches them: it prints message and hint to stderr and exits
with ``exit_code``. The codes are the contract of DESIGN section 9 and are listed in the README.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

# Control characters but line feeds and tabs, what turns the direction of writing, halves of characters.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)

_WIDTH = 2000  # characters of a line of a message
_END = 200  # of those, the last ones of a line that is cut
_LINES = 500


def printable(text: str) -> str:
    """*text* with what would steer a terminal told in its place: a name may hold an escape sequence."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def _clipped(text: str) -> str:
    """*text* for a message: nobody reads a line of a megabyte, or ten thousand lines."""
    lines = text.split("\n")
    more = [f"and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    # The reason stands at the end of a line as a rule.
    cut = (
        line if len(line) <= _WIDTH else f"{line[: _WIDTH - _END]}…{line[-_END:]}" for line in lines[:_LINES]
    )
    return "\n".join((*cut, *more))


class KilnError(Exception):
    """Stops the run. *message* says what and where, *hint* what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(_clipped(message))
        self.hint = printable(_clipped(hint))
        super().__init__(self.message)


class ConfigError(KilnError):
    """Bad configuration or usage; carries every fault found, not only the first."""

    exit_code = 2

    @classmethod
    def of(cls, faults: Iterable[str], *, hint: str = "") -> ConfigError:
        """One error that lists all *faults*, a line each."""
        return cls("\n".join(faults), hint=hint)


class NothingSelected(KilnError):
    """The selection is valid but holds no cell."""

    exit_code = 3


class Unresolvable(KilnError):
    """The cell cannot be had: no wheel, or an index that is not configured or not reachable."""

    exit_code = 4


class Stale(KilnError):
    """A generated file or a lock no longer matches what it was made from."""

    exit_code = 5


class BuildFailed(KilnError):
    """The build stopped: wrong hash, refused wheel, lost network, no space."""

    exit_code = 6


class BadWheel(BuildFailed):
    """A wheel that is refused; the message names the wheel and the reason."""

    def __init__(self, wheel: str, reason: str) -> None:
        super().__init__(
            f"{wheel}: {reason}",
            hint="the file on the index is not the wheel that was locked, or is malformed; nothing was kept;"
            " do not lock it again before you know why it differs",
        )
        self.wheel = wheel
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadWheel], tuple[str, str]]:  # it crosses process borders
        return BadWheel, (self.wheel, self.reason)


class BadArchive(BuildFailed):
    """An archive of NVIDIA's toolkit that is refused; the message names it and the reason."""

    def __init__(self, archive: str, reason: str) -> None:
        super().__init__(
            f"{archive}: {reason}",
            hint="the file is not the archive that was locked, or is malformed; nothing was kept",
        )
        self.archive = archive
        self.reason = reason


class GateRefused(KilnError):
    """The image was not proved as the policy demands; *missing* is (what, why), all of it."""

    exit_code = 7

    def __init__(self, message: str, *, missing: Iterable[tuple[str, str]] = (), hint: str = "") -> None:
        self.missing = tuple(missing)
        super().__init__("\n".join((message, *(f"  {what}: {why}" for what, why in self.missing))), hint=hint)


class ToolMissing(KilnError):
    """An engine, runtime or tool is not there."""

    exit_code = 8


class RegistryError(KilnError):
    """A registry refused or could not be reached."""

    exit_code = 9


class SmokeFailed(KilnError):
    """A check failed inside the image."""

    exit_code = 10


class SmokeInconclusive(KilnError):
    """The host, not the image, is at fault."""

    exit_code = 11


class VerificationFailed(KilnError):
    """A layout, a digest or a signature is not what it claims."""

    exit_code = 12


class Foreign(VerificationFailed):
    """Something that others put there, in a form that is not ours: no fault where ours is looked for."""
