"""Every way to stop: one class per kind of failure, each with its exit code and a hint.

`cli.main` is the only place that catches them: it prints message and hint to stderr and exits
with ``exit_code``. The codes are the contract of DESIGN section 9 and are listed in the README.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class KilnError(Exception):
    """Stops the run. *message* says what and where, *hint* what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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
            hint="the file on the index is not the wheel that was locked, or is malformed; nothing was kept",
        )
        self.wheel = wheel
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadWheel], tuple[str, str]]:  # it crosses process borders
        return BadWheel, (self.wheel, self.reason)


class GateRefused(KilnError):
    """The image was not proved as the policy demands."""

    exit_code = 7


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
