"""Defines the choice of a project's extras and dependency groups."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError

HINT = "choose an extra or a group that exists, or choose none: --extra ''"
HOW_TO_NAME = "use letters and digits, with '.', '_' or '-' between them"
_NAME = re.compile(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]{0,198}[A-Z0-9]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The extras and groups to install in addition to a project's dependencies; normalized names, sorted."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether the choice has an extra or a group."""
        return bool(self.extras or self.groups)

    @property
    def options(self) -> str:
        """The options that make this choice: "--extra gpu --group dev"."""
        named = (*(f"--extra {name}" for name in self.extras), *(f"--group {name}" for name in self.groups))
        return " ".join(named) or "--extra ''"

    @property
    def phrase(self) -> str:
        """The choice in a sentence."""
        return f"with {self.options}" if self.any else "without extras and groups"

    def within(self, extras: Iterable[str], groups: Iterable[str]) -> Choice:
        """The part of the choice that is in *extras* and *groups*."""
        return choice_of({*self.extras} & {*extras}, {*self.groups} & {*groups})

    def unknown(self, source: str, extras: Collection[str], groups: Collection[str]) -> list[str]:
        """A fault for each chosen name that the file *source* does not define."""
        return [
            f"--{kind} {name}: {source} has no such {kind}{listed(known)}"
            for kind, chosen, known in (("extra", self.extras, extras), ("group", self.groups, groups))
            for name in chosen
            if name not in known
        ]


NO_CHOICE = Choice()


def choice_of(extras: Iterable[str], groups: Iterable[str]) -> Choice:
    """The choice of *extras* and *groups*, whose names are normalized; empty names are ignored.

    :raises ConfigError: some names are invalid; lists all of them.
    """
    faults: list[str] = []
    found = Choice(
        extras=tuple(sorted({*_names(extras, "extra", faults)})),
        groups=tuple(sorted({*_names(groups, "group", faults)})),
    )
    if faults:
        raise ConfigError.of(faults, hint=HOW_TO_NAME)
    return found


def is_name(text: str) -> bool:
    """Whether *text* can be the name of an extra or a group (PEP 508)."""
    return _NAME.fullmatch(text) is not None


def listed(known: Collection[str]) -> str:
    """The end of a message about an unknown name: lists the *known* names."""
    if not known:
        return "; it has none"
    shown = sorted(known)[:30]
    return f"; it has: {', '.join(shown)}{', …' if len(known) > len(shown) else ''}"


def _names(texts: Iterable[str], kind: str, faults: list[str]) -> Iterator[str]:
    for text in filter(None, texts):
        if is_name(text):
            yield canonicalize_name(text)
        else:
            faults.append(f"--{kind} {text[:100]!r}: invalid {kind} name")
