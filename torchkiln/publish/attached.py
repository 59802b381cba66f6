"""The statements attached to an image in a registry that a trusted key or identity signed.

The kind of a statement follows from its signed content alone: anyone who can write to the registry can change
annotations and artifact types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torchkiln.attest.retraction import is_retraction, reason_of
from torchkiln.attest.signers import FORMS, Opened
from torchkiln.attest.statement import Statement
from torchkiln.errors import UnknownFormat, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.publish.fetched import fetched, looked
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.referrers import listing

NOT_VERIFIED = "signatures not verified: no trusted key or identity is named; add --key PUBLIC.pem"
_DAMAGED = 20  # statements after which the rest is not fetched
_SHOWN = 3  # retractions that do not count


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
    other_role: int = 0  # of these, signed by a trusted key that does not count for such statements
    unheeded: tuple[str, ...] = ()  # reasons of retractions that nobody signed who is trusted

    @property
    def retractions(self) -> tuple[Opened, ...]:
        """Those that count, of every version."""
        return tuple(one for kind, found in self.by_kind.items() if is_retraction(kind) for one in found)

    def all(self, kind: str) -> tuple[Statement, ...]:
        """What is said of that *kind*, in the order in which it is listed."""
        return tuple(one.statement for one in self.by_kind.get(kind, ()))


def attached(reading: RepositoryReader, image: Digest, opener: Opener) -> Attached:
    """Fetch and open what goes with *image*.

    :raises RegistryError: the registry refuses, or cannot be reached.
    :raises VerificationFailed: it is more than anybody would attach: some of it would go unread.
    """
    found: dict[str, tuple[Opened, ...]] = {}
    damaged: list[str] = []
    unheeded: list[str] = []
    strangers = other_role = 0
    there = listing(reading, image, FORMS)
    for one, got in fetched(reading, looked(reading, there.selected, image)):
        where = f"referrer {one.digest[:19]}"
        try:
            if isinstance(got, VerificationFailed):
                raise got
            told = opener.open(*got, where=where)
        except UnknownFormat:
            strangers += 1
            continue
        except VerificationFailed as error:
            damaged.append(error.message)
            if len(damaged) > _DAMAGED:
                what = f"more than {_DAMAGED} damaged statements, the first: {damaged[0]}"
                raise _too_much(reading, image, what) from None
            continue
        counts = bool(told.signers) or not opener.looks
        if told.statement.image != image:
            if counts:
                damaged.append(f"{where}: tells of {told.statement.image}, not of this image")
            else:
                strangers += 1
            continue
        if not counts:
            strangers += 1
            other_role += told.other_role
            if is_retraction(told.statement.kind) and len(unheeded) < _SHOWN:
                unheeded.append(_reason(told.statement))
            continue
        found[told.statement.kind] = (*found.get(told.statement.kind, ()), told)
    return Attached(
        by_kind=found,
        damaged=tuple(damaged),
        strangers=strangers + there.others,
        other_role=other_role,
        unheeded=tuple(unheeded),
    )


def _reason(told: Statement) -> str:
    try:
        return reason_of(told, where="retraction")[0][:200]
    except VerificationFailed:
        return "?"


def _too_much(reading: RepositoryReader, image: Digest, what: str) -> VerificationFailed:
    return VerificationFailed(
        f"{reading.repository}@{image[:19]}: {what}",
        hint="somebody who can write to the registry put them there; delete them, or use another image",
    )
