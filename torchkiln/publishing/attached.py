"""An image in a registry → what goes with it, as far as it counts: what those said who are trusted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from torchkiln.errors import Foreign, VerificationFailed
from torchkiln.nouns import Digest
from torchkiln.publishing.fetched import fetched, looked
from torchkiln.publishing.sealing import FORMS, Opened
from torchkiln.registry.reading import Reading
from torchkiln.registry.referrers import listing
from torchkiln.statements.statement import Statement


class Opener(Protocol):
    """Reads what goes with an image, and knows whom to trust."""

    @property
    def looks(self) -> bool:
        """Whether it trusts anybody: else signatures are not looked at."""

    def open(self, data: bytes, kind: str, *, where: str) -> Opened:
        """The statement in an artifact, and who signed it of those who are trusted.

        :raises Foreign: it is none in a form that is known here.
        :raises VerificationFailed: its signature does not fit.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """What goes with one image."""

    by_kind: Mapping[str, tuple[Opened, ...]]  # what counts, by predicate type
    damaged: tuple[str, ...]  # what was changed, is lost, or tells of another image
    strangers: int  # by nobody who is trusted, or in others' forms: no fault, and no proof

    def all(self, kind: str) -> tuple[Statement, ...]:
        """What is said of that *kind*, in the order in which it is listed."""
        return tuple(one.statement for one in self.by_kind.get(kind, ()))


def attached(
    reading: Reading, image: Digest, opener: Opener, *, kinds: Collection[str] | None = None
) -> Attached:
    """Fetch and open what goes with *image*.

    :param kinds: only these, by what the registry lists of them; None: all.
    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    found: dict[str, tuple[Opened, ...]] = {}
    damaged, strangers = [], 0
    try:
        there = listing(reading, image, FORMS)
        wanted = [one for one in there.wanted if kinds is None or set(one.annotations.values()) & set(kinds)]
        brings = looked(reading, wanted, image)
    except VerificationFailed as error:  # too many: what is not read may be a retraction
        return Attached(by_kind={}, damaged=(error.message,), strangers=0)
    for one, got in fetched(reading, brings):
        where = f"referrer {one.digest[:19]}"
        try:
            if isinstance(got, VerificationFailed):
                raise got
            told = opener.open(*got, where=where)
            if told.statement.image != image:
                raise VerificationFailed(f"{where}: tells of {told.statement.image}, not of this image")
        except Foreign:
            strangers += 1
            continue
        except VerificationFailed as error:
            damaged.append(error.message)
            continue
        if opener.looks and not told.signers:
            strangers += 1
            continue
        found[told.statement.kind] = (*found.get(told.statement.kind, ()), told)
    others = there.others if kinds is None else 0
    return Attached(by_kind=found, damaged=tuple(damaged), strangers=strangers + others)
