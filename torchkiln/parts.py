"""Nouns that others in `nouns` are made of, and that need none of those."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFile:
    """A file that no index has, by content; where it lies the user says, by the variable of its package."""

    name: str  # "flash-attn", "micromamba"
    version: str
    filename: str
    sha256: str  # hex


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Something that an image can have on top, for one cell."""

    name: str  # "flash-attn"
    suffix: str  # of tags, "flashattn"
    requires: tuple[str, ...] = ()  # PEP 508
    wheels: tuple[OwnFile, ...] = ()
    program: OwnFile | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Healthcheck:
    """Docker's extension of the image config; times in seconds."""

    command: tuple[str, ...]
    interval: int
    timeout: int
    start_period: int
    retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What an image sets for something that it has: a toolkit, a program."""

    programs: tuple[str, ...] = ()  # folders on PATH
    libraries: tuple[str, ...] = ()  # on LD_LIBRARY_PATH: what is linked here starts here, without an rpath
    env: tuple[tuple[str, str], ...] = ()
