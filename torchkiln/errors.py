"""Defines the exceptions: one class for each kind of failure, with its exit code and a hint.

`cli.main` is the only place that catches them: it prints message and hint to stderr and exits
with ``exit_code``. docs/reference.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

_MALFORMED = "the file is not the locked archive, or is malformed; nothing was stored"
_LINE_LENGTH = 2000  # characters
_LINE_END = 200  # characters at the end of a truncated line that are kept
_LINES = 500


def printable(text: str) -> str:
    """*text* with all but letters, signs, spaces and line feeds escaped: a terminal shows what is there."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def _truncated(text: str) -> str:
    lines = text.split("\n")
    more = [f"and {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    # The reason is usually at the end of a line.
    short = (
        line if len(line) <= _LINE_LENGTH else f"{line[: _LINE_LENGTH - _LINE_END]}…{line[-_LINE_END:]}"
        for line in lines[:_LINES]
    )
    return "\n".join((*short, *more))


class KilnError(Exception):
    """An error that ends the command. *message* says what failed and where, *hint* what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(_truncated(message))
        self.hint = printable(_truncated(hint))
        super().__init__(self.message)


class ConfigError(KilnError):
    """Invalid configuration or usage; the message lists every fault."""

    exit_code = 2

    @classmethod
    def of(cls, faults: Iterable[str], *, hint: str = "") -> ConfigError:
        return cls("\n".join(faults), hint=hint)


class NothingSelected(KilnError):
    """The selection is valid but empty."""

    exit_code = 3


class Unresolvable(KilnError):
    """The cell is unavailable: no wheel exists, or an index is not configured or cannot be reached."""

    exit_code = 4


class OnlySource(Unresolvable):
    """The index has no wheel of the packages *names* for the image, only source code."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self.names = tuple(names)
        super().__init__(f"{', '.join(self.names)}: no wheel for this image, only source code:\n{why}")


class Stale(KilnError):
    """A generated file or a lock does not match the files and settings that it was made from."""

    exit_code = 5


class BuildFailed(KilnError):
    """The build failed: checksum mismatch, invalid wheel, network error, no space left."""

    exit_code = 6


class NotListed(BuildFailed):
    """An index no longer has a file that it had when it was locked."""


class BadWheel(BuildFailed):
    """A wheel is invalid; the message names the wheel and the reason."""

    def __init__(self, wheel: str, reason: str) -> None:
        super().__init__(
            f"{wheel}: {reason}",
            hint="the file on the index is not the locked wheel, or is malformed; nothing was stored;"
            " find out why it differs before you lock it again",
        )
        self.wheel = wheel
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadWheel], tuple[str, str]]:  # a worker process pickles its exceptions
        return BadWheel, (self.wheel, self.reason)


class BadArchive(BuildFailed):
    """An archive of NVIDIA's toolkit is invalid; the message names the archive and the reason."""

    def __init__(self, archive: str, reason: str, *, hint: str = _MALFORMED) -> None:
        super().__init__(f"{archive}: {reason}", hint=hint)
        self.archive = archive
        self.reason = reason


class BadPythonArchive(BadArchive):
    """The archive of a standalone Python is invalid; the message names the archive and the reason."""

    def __init__(self, archive: str, reason: str) -> None:
        super().__init__(
            archive, reason, hint="specify another archive in matrix.yaml, under pythons; nothing was stored"
        )


class GateRefused(KilnError):
    """The image does not meet the policy; *missing* lists each requirement that is not met, and why."""

    exit_code = 7

    def __init__(self, message: str, *, missing: Iterable[tuple[str, str]] = (), hint: str = "") -> None:
        self.missing = tuple(missing)
        super().__init__("\n".join((message, *(f"  {what}: {why}" for what, why in self.missing))), hint=hint)


class ToolMissing(KilnError):
    """An engine, runtime or tool is not installed."""

    exit_code = 8


class RegistryError(KilnError):
    """A registry refused a request or could not be reached."""

    exit_code = 9


class SmokeFailed(KilnError):
    """A check failed inside the image."""

    exit_code = 10


class SmokeInconclusive(KilnError):
    """A check failed because of the host, not the image."""

    exit_code = 11


class VerificationFailed(KilnError):
    """A layout, a digest, a document or a signature is invalid."""

    exit_code = 12


class UnknownFormat(VerificationFailed):
    """A document is in a format that torchkiln does not read; callers that look for documents skip it."""
