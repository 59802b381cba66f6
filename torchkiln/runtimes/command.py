"""Defines data classes of the runtimes: a command, its settings and mounts, and its exit status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import ConfigError

_MAX_ID = (1 << 32) - 2  # to the kernel, the next number means "leave unchanged"
_USER_HINT = "the user comes from --user, or from the image; set another: --user 1000:1000"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A file or folder of the host, mounted at a path in the container."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeSettings:
    """Settings that all commands in an image share."""

    env: tuple[str, ...] = ()  # NAME=VALUE, in addition to those of the image
    gpus: str | None = None  # "all", "none", a number, "device=ID,ID"; None: all if there are any
    shm_size: int = 1 << 30  # bytes of /dev/shm, which DataLoader workers and NCCL use


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command as the user requests it. None or empty: the value of the image's config."""

    argv: tuple[str, ...] = ()
    entrypoint: bool = True  # False: without the image's entrypoint
    user: str | None = None  # UID or UID:GID; engines accept names too
    workdir: str | None = None
    binds: tuple[Bind, ...] = ()
    ports: tuple[str, ...] = ()  # as Docker's -p; engines only


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A fully resolved command, which a runtime starts in an unpacked image."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)  # the whole environment; HOME is added if it is missing
    binds: tuple[Bind, ...] = ()
    workdir: str = "/"
    user: tuple[int, int] = (0, 0)  # uid, gid


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """The caller's standard streams, for a command that uses them directly."""

    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """How a command ended. `code` is the exit code, or 128 plus the number of the signal that killed it."""

    code: int
    stdout: bytes  # empty if the command wrote to the caller's stream, or a function received each line
    stderr: bytes
    timed_out: bool


def parse_user(text: str) -> tuple[int, int]:
    """Parse `UID` or `UID:GID`; as in Docker, the group of a UID alone is 0.

    :raises ConfigError: *text* is neither.
    """
    match = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", text)
    if not match:
        raise ConfigError(f"user {text[:80]!r} is not a numeric UID or UID:GID", hint=_USER_HINT)
    user, group = int(match[1]), int(match[2] or 0)
    if max(user, group) > _MAX_ID:
        raise ConfigError(f"user {text!r} is out of range: the largest id is {_MAX_ID}", hint=_USER_HINT)
    return user, group
