"""Nouns that others in `nouns` are made of, and that need none of those."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What a user should know of a cell, by the id of a fact. `sentences.limit_text` has the words."""

    fact: str  # "rules.unserved"
    values: tuple[str, ...] = ()  # ("3.7", "10.0")

    def __str__(self) -> str:
        return f"{self.fact}={','.join(self.values)}" if self.values else self.fact

    @classmethod
    def parse(cls, text: str) -> Limit:
        """The inverse of `str`."""
        fact, _, values = text.partition("=")
        return cls(fact=fact, values=tuple(values.split(",")) if values else ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A bound on a package, with the id of the fact that asks for it."""

    requirement: str  # PEP 508
    fact: str


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
