"""Lists the images of a repository with their tags, the GPUs of their reports, and their faults."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.attest.signers import Trust
from torchkiln.errors import VerificationFailed
from torchkiln.matrix.tags import parse_name
from torchkiln.model.device_code import Gpus
from torchkiln.model.digest import Digest
from torchkiln.publishing.attached import AttachedStatements, attached
from torchkiln.publishing.warnings import WARNINGS
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.referrers import LIST
from torchkiln.util.sentences import Value, said, sentence

_VERSION = "org.opencontainers.image.version"


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """An image in a repository, with its tags."""

    digest: Digest
    tags: tuple[str, ...]
    version: str  # its tag in the version label; empty: torchkiln did not build it
    gpus: tuple[str, ...]  # on which it was tested, "2 × NVIDIA H200"
    cleared: bool  # by the gate, with nothing missing
    override: str  # the reason of --override; empty: published without --override
    retracted: str  # the reason; empty: not retracted
    faults: tuple[str, ...]  # of its statements
    names: frozenset[str] | None = None  # under which it was published; None: not recorded
    untrusted_retractions: tuple[str, ...] = ()  # without a trusted signature: shown, ignored

    @property
    def only_for(self) -> Gpus:
        """The capabilities whose device code the image keeps, according to its version label; empty: all."""
        return parsed.gpus if (parsed := parse_name(self.version)) else ()

    @property
    def own_use(self) -> bool:
        """Whether the image contains modified NVIDIA libraries, according to its version label."""
        return (parsed := parse_name(self.version)) is not None and parsed.own_use

    @property
    def misnamed(self) -> tuple[str, ...]:
        """Tags under which the image was not published: someone moved them to it."""
        return tuple(tag for tag in self.tags if self.names is not None and tag not in self.names)

    @property
    def good(self) -> bool:
        """Whether it may be used."""
        return self.cleared and not self.retracted and not self.faults

    @property
    def notices(self) -> tuple[Value, ...]:
        """What a user of the image must know, as data that can be translated; faults are in English."""
        found = [sentence("retracted", reason=self.retracted)] if self.retracted else []
        found += [sentence("override", reason=self.override)] if self.override else []
        found += [sentence("only-for", capabilities=", ".join(self.only_for))] if self.only_for else []
        found += [sentence("own-use")] if self.own_use else []
        found += [sentence("tag-moved", tag=tag) for tag in self.misnamed]
        found += [sentence("retraction-ignored", reason=reason) for reason in self.untrusted_retractions]
        cleared = self.cleared or self.override
        return (*found, *self.faults, *(() if cleared else (sentence("not-cleared"),)))

    @property
    def warnings(self) -> tuple[str, ...]:
        """`notices` in English, one phrase for each."""
        return tuple(said(notice, WARNINGS) for notice in self.notices)


def catalog(reading: RepositoryReader, trust: Trust) -> list[CatalogEntry]:
    """The images that have a tag, the newest version first.

    :raises RegistryError: a request failed.
    """
    by_digest: dict[Digest, tuple[Document, list[str]]] = {}
    for tag in reading.tags():
        if not LIST.fullmatch(tag) and (found := reading.manifest(tag)):
            by_digest.setdefault(found.digest, (found, []))[1].append(tag)
    entries = [_entry(reading, found, tags, trust) for found, tags in by_digest.values()]
    return sorted(entries, key=lambda entry: (entry.version, max(entry.tags)), reverse=True)


def _entry(reading: RepositoryReader, found: Document, tags: list[str], trust: Trust) -> CatalogEntry:
    try:
        statements = attached(reading, found.digest, trust)
    except VerificationFailed as error:
        statements = AttachedStatements(by_kind={}, damaged=(error.message,), untrusted=0)
    faults, last, names = list(statements.damaged), None, None
    try:
        last = statements.decision()
        names = statements.names() or (frozenset() if last else None)
    except VerificationFailed as error:
        faults.append(error.message)
    annotations = found.json.get("annotations")
    version = annotations.get(_VERSION, "") if isinstance(annotations, dict) else ""
    return CatalogEntry(
        digest=found.digest,
        tags=tuple(sorted(tags)),
        version=version if isinstance(version, str) else "",
        gpus=tuple(dict.fromkeys(gpu for gpu in last.gpus if gpu)) if last else (),
        cleared=last is not None and not last.override,
        override=(last.override or "") if last else "",
        retracted="; ".join(retraction.reason for retraction in statements.retractions),
        names=names,
        faults=tuple(faults),
        untrusted_retractions=statements.untrusted_retractions,
    )
