"""Lists the images of a repository with tags, the GPUs of their reports, and their faults; retracts images.

A retracted image's tags move to the last good image. The digest and the dated tag stay, so that users of the
image can still see what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchkiln.attest.signers import Signer, Trust
from torchkiln.attest.statement import publication, retraction
from torchkiln.errors import VerificationFailed
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import ParsedTag, aliases_for, parse_name, undated
from torchkiln.model.device_code import Gpus
from torchkiln.model.digest import Digest
from torchkiln.model.layer import split_format
from torchkiln.oci.image import MANIFEST_TYPE, descriptor
from torchkiln.publishing.attached import AttachedStatements, attached
from torchkiln.publishing.warnings import WARNINGS
from torchkiln.registry.push import delete_tag, put
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.referrers import LIST, attach
from torchkiln.util.sentences import Value, said, sentence
from torchkiln.util.versions import numbers

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedTag:
    """A tag of the retracted image that was moved to another image, deleted, or left where it was."""

    tag: str
    to: str | None  # the other image's dated tag; None: no good image may have the tag
    gone: bool = False  # the tag was deleted; if False and `to` is None, the registry cannot delete tags


@dataclass(frozen=True, kw_only=True, slots=True)
class Retraction:
    digest: Digest
    statement: Digest | None  # digest of its manifest; None: a trusted key retracted the image before
    moved: tuple[MovedTag, ...]


def retract(
    reading: RepositoryReader,
    found: Document,
    signer: Signer,
    trust: Trust,
    matrix: Matrix,
    *,
    reason: str,
    when: str,
) -> Retraction:
    """Retract the image with the manifest *found*.

    First the statement is attached, so that `verify` refuses the image; then the tags move. If the run is
    interrupted, run it again to complete it.

    :param when: UTC, "2026-11-22T17:05:16Z".
    :raises ConfigError: the reason is empty.
    :raises RegistryError: a request failed.
    """
    statement = retraction("", found.digest, reason=reason, when=when)
    entries = catalog(reading, trust)
    own = next((entry for entry in entries if entry.digest == found.digest), None)
    attached = None
    if not (trust.verifies and own and own.retracted):  # unverified: does not count
        subject = descriptor(MANIFEST_TYPE, found.digest, len(found.data))
        [attached] = attach(reading.registry, reading.repository, subject, [signer.sign(statement)])
    moving = [tag for tag in (own.tags if own else ()) if not undated(tag)]
    others = [entry for entry in entries if entry.digest != found.digest and entry.good]
    moved = tuple(_move(reading, tag, others, matrix, signer) for tag in moving)
    return Retraction(digest=found.digest, statement=attached, moved=moved)


def _move(
    reading: RepositoryReader, tag: str, others: Sequence[CatalogEntry], matrix: Matrix, signer: Signer
) -> MovedTag:
    """Move *tag* to the newest of *others* that may have it; if there is none, delete it.

    If that image was not published under the tag, a statement that names the tag is attached to it.
    """
    best = max(
        (
            (numbers(parsed.torch), numbers(parsed.cuda), day, dated, own, entry.digest)
            for entry in others
            for dated, own, parsed, day in _dated(entry)
            if tag == own or tag in aliases_for(own, matrix)
        ),
        default=None,
    )
    if best is None:
        return MovedTag(tag=tag, to=None, gone=delete_tag(reading.registry, reading.repository, tag))
    *_, dated, own, digest = best
    manifest = reading.require(digest).data
    [target] = (entry for entry in others if entry.digest == digest)
    if target.names is not None and tag not in target.names:
        subject = descriptor(MANIFEST_TYPE, digest, len(manifest))
        artifact = signer.sign(publication(split_format(own)[0], digest, [tag]))
        attach(reading.registry, reading.repository, subject, [artifact])
    put(reading.registry, reading.repository, manifest, tag)
    return MovedTag(tag=tag, to=dated)


def _dated(entry: CatalogEntry) -> list[tuple[str, str, ParsedTag, str]]:
    """The dated tags of an image, each as (tag, tag without the day, its parts, day).

    Tags under which it was not published are left out.
    """
    found = []
    for tag in sorted(set(entry.tags) - set(entry.misnamed)):
        parts = undated(tag)
        if parts and (parsed := parse_name(split_format(parts[0])[0])):
            found.append((tag, parts[0], parsed, parts[1]))
    return found
