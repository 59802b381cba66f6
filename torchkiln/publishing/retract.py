"""Retracts a published image, and moves its tags to the last good image.

The digest and the dated tag stay, so that users of the image can still see what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchkiln.attest.publication import publication, retraction
from torchkiln.attest.signers import Signer, Trust
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import ParsedTag, aliases_for, parse_name, undated
from torchkiln.model.digest import Digest
from torchkiln.model.layer import split_format
from torchkiln.oci.image import MANIFEST_TYPE, descriptor
from torchkiln.publishing.catalog import CatalogEntry, catalog
from torchkiln.registry.push import delete_tag, put
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.referrers import attach
from torchkiln.util.versions import numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedTag:
    """A tag of the retracted image that was moved to another image, deleted, or left where it was."""

    tag: str
    to: str | None  # the other image's dated tag; None: no good image may have the tag
    gone: bool = False  # the tag was deleted; if False and `to` is None, the registry cannot delete tags


@dataclass(frozen=True, kw_only=True, slots=True)
class Retraction:
    """The result of `retract`."""

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
