"""What every runtime is asked: a command in an image, what it sees of the host; and how it ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import ConfigError

_LAST_ID = (1 << 32) - 2  # the one above means "leave it as it is" to the kernel
_USER = "it is the image's own, or that of --user; --user 1000:1000 sets another"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A file or folder of the host at a path inside."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What every command in an image is given, whatever it is."""

    env: tuple[str, ...] = ()  # NAME=VALUE, beside the image's own
    gpus: str | None = None  # "all", "none", a number, "device=ID,ID"; None: all if there are some
    shm_size: int = 1 << 30  # bytes of /dev/shm: DataLoader workers and NCCL want room


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command as a user asks for it. What is None or empty is as the image says."""

    argv: tuple[str, ...] = ()
    entrypoint: bool = True  # False: without the image's
    user: str | None = None  # UID or UID:GID; an engine knows names too
    workdir: str | None = None
    binds: tuple[Bind, ...] = ()
    ports: tuple[str, ...] = ()  # as Docker's -p; only engines have them


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A command that is looked up nowhere any more: what a runtime starts in an unpacked image."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)  # exactly these; HOME is added where it is missing
    binds: tuple[Bind, ...] = ()
    workdir: str = "/"
    user: tuple[int, int] = (0, 0)  # uid, gid


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """Those of a caller who runs a command as if there were no image around it."""

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """How a command ended. `code` is 128 and the signal's number where a signal ended it."""

    code: int
    stdout: bytes  # empty where it was passed through
    stderr: bytes
    timed_out: bool


def parse_user(text: str) -> tuple[int, int]:
    """`UID` or `UID:GID`; as Docker: a uid alone runs with group 0.

    :raises ConfigError: it is neither.
    """
    match = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", text)
    if not match:
        raise ConfigError(f"user {text[:80]!r} is not UID or UID:GID in digits", hint=_USER)
    user, group = int(match[1]), int(match[2] or 0)
    if max(user, group) > _LAST_ID:
        raise ConfigError(f"user {text!r}: the kernel knows ids up to {_LAST_ID}", hint=_USER)
    return user, group
