"""A repository → its tags for people: which image each is, where that was proved, what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.errors import VerificationFailed
from torchkiln.nouns import Digest
from torchkiln.publishing.attached import Opener, attached
from torchkiln.registry.reading import Document, Reading
from torchkiln.registry.referrers import LIST
from torchkiln.statements.clearance import CLEARANCE, decision_of, prevailing
from torchkiln.statements.retraction import RETRACTION, reason_of
from torchkiln.statements.statement import Statement

_VERSION = "org.opencontainers.image.version"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An image in a repository, with every tag that stands for it."""

    digest: Digest
    tags: tuple[str, ...]
    version: str  # the tag that it was built under; empty: it is none of ours
    gpus: tuple[str, ...]  # on which it was proved, "2 × NVIDIA H200"
    cleared: bool  # by the gate, with nothing missing
    override: str  # why it was published all the same; empty: it was not
    retracted: str  # why; empty: it is not
    faults: tuple[str, ...]  # of what goes with it

    @property
    def good(self) -> bool:
        """Whether it may be used."""
        return self.cleared and not self.retracted and not self.faults


def catalog(reading: Reading, opener: Opener) -> list[Listed]:
    """Every image that has a tag, the newest name first.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    by_digest: dict[Digest, tuple[Document, list[str]]] = {}
    for tag in reading.tags():
        if not LIST.fullmatch(tag) and (found := reading.manifest(tag)):
            by_digest.setdefault(found.digest, (found, []))[1].append(tag)
    entries = [_entry(reading, found, tags, opener) for found, tags in by_digest.values()]
    return sorted(entries, key=lambda one: (one.version, max(one.tags)), reverse=True)


def _entry(reading: Reading, found: Document, tags: list[str], opener: Opener) -> Listed:
    there = attached(reading, found.digest, opener, kinds=(CLEARANCE, RETRACTION))
    faults, decisions = list(there.damaged), []
    for told in there.all(CLEARANCE):
        try:
            decisions.append(decision_of(told, where="clearance"))
        except VerificationFailed as error:
            faults.append(error.message)
    last = prevailing(decisions)
    annotations = found.told.get("annotations")
    version = annotations.get(_VERSION, "") if isinstance(annotations, dict) else ""
    return Listed(
        digest=found.digest,
        tags=tuple(sorted(tags)),
        version=version if isinstance(version, str) else "",
        gpus=tuple(dict.fromkeys(gpu for gpu in last.gpus if gpu)) if last else (),
        cleared=last is not None and not last.override,
        override=(last.override or "") if last else "",
        retracted="; ".join(_reasons(there.all(RETRACTION), faults)),
        faults=tuple(faults),
    )


def _reasons(told: tuple[Statement, ...], faults: list[str]) -> Iterator[str]:
    for one in told:
        try:
            yield reason_of(one, where="retraction")[0]
        except VerificationFailed as error:
            faults.append(error.message)
