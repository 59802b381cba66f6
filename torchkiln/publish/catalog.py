"""Lists the images of a repository with their tags, the GPUs of their reports, and their faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.attest.publication import PUBLICATION, published_names
from torchkiln.attest.retraction import reason_of
from torchkiln.attest.signers import Opened
from torchkiln.errors import VerificationFailed
from torchkiln.gate.clearance import CLEARANCE, decision_of, prevailing
from torchkiln.model.digest import Digest
from torchkiln.publish.attached import Attached, Opener, attached
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.referrers import LIST

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
    names: frozenset[str] | None = None  # under which it was published; None: older images do not say
    unheeded: tuple[str, ...] = ()  # retractions by nobody who is trusted: shown, and without effect

    @property
    def misnamed(self) -> tuple[str, ...]:
        """Tags under which it was not published: somebody moved them."""
        return tuple(tag for tag in self.tags if self.names is not None and tag not in self.names)

    @property
    def good(self) -> bool:
        """Whether it may be used."""
        return self.cleared and not self.retracted and not self.faults


def catalog(reading: RepositoryReader, opener: Opener) -> list[Listed]:
    """Every image that has a tag, the newest name first.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    by_digest: dict[Digest, tuple[Document, list[str]]] = {}
    for tag in reading.tags():
        if not LIST.fullmatch(tag) and (found := reading.manifest(tag)):
            by_digest.setdefault(found.digest, (found, []))[1].append(tag)
    entries = [_entry(reading, found, tags, opener) for found, tags in by_digest.values()]
    return sorted(entries, key=lambda one: (one.version, max(one.tags)), reverse=True)


def _entry(reading: RepositoryReader, found: Document, tags: list[str], opener: Opener) -> Listed:
    try:
        there = attached(reading, found.digest, opener)
    except VerificationFailed as error:
        there = Attached(by_kind={}, damaged=(error.message,), strangers=0)
    faults, decisions = list(there.damaged), []
    for told in there.all(CLEARANCE):
        try:
            decisions.append(decision_of(told, where="clearance"))
        except VerificationFailed as error:
            faults.append(error.message)
    last = prevailing(decisions)
    annotations = found.json.get("annotations")
    version = annotations.get(_VERSION, "") if isinstance(annotations, dict) else ""
    return Listed(
        digest=found.digest,
        tags=tuple(sorted(tags)),
        version=version if isinstance(version, str) else "",
        gpus=tuple(dict.fromkeys(gpu for gpu in last.gpus if gpu)) if last else (),
        cleared=last is not None and not last.override,
        override=(last.override or "") if last else "",
        retracted="; ".join(_reasons(there.retractions)),
        names=_names(there, any(one.names_signed for one in decisions), faults),
        faults=tuple(faults),
        unheeded=there.unheeded,
    )


def _names(there: Attached, signed: bool, faults: list[str]) -> frozenset[str] | None:
    found: frozenset[str] = frozenset()
    for told in there.all(PUBLICATION):
        try:
            found |= published_names(told, where="names")
        except VerificationFailed as error:
            faults.append(error.message)
    return found if signed or found else None


def _reasons(told: tuple[Opened, ...]) -> Iterator[str]:
    for one in told:
        try:
            yield reason_of(one.statement, where="retraction")[0].strip() or "no reason is told"
        except VerificationFailed as error:
            yield error.message
