"""Retracts a published image, and moves its tags to the last good image.

The digest and the dated tag stay, so that users of the image can still see what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchkiln.attest.publication import publication
from torchkiln.attest.retraction import retraction
from torchkiln.attest.signers import Sealer
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import ParsedTag, aliases_for, parse_name, undated
from torchkiln.model.digest import Digest
from torchkiln.model.layer_format import split_format
from torchkiln.oci.image import MANIFEST_TYPE, descriptor
from torchkiln.publish.attached import Opener
from torchkiln.publish.catalog import Listed, catalog
from torchkiln.registry.naming import delete_tag, put
from torchkiln.registry.reading import Document, RepositoryReader
from torchkiln.registry.referrers import attach
from torchkiln.util.versions import numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """Where a tag went."""

    tag: str
    to: str | None  # a dated tag; None: no good image is left for it
    gone: bool = False  # deleted, for want of one; where the registry deletes no tags, it stays


@dataclass(frozen=True, kw_only=True, slots=True)
class Retracted:
    """What was done."""

    digest: Digest
    statement: Digest | None  # of the manifest that says so; None: it was said before by one who is trusted
    moved: tuple[Moved, ...]


def retract(
    reading: RepositoryReader,
    found: Document,
    sealer: Sealer,
    opener: Opener,
    matrix: Matrix,
    *,
    reason: str,
    when: str,
) -> Retracted:
    """Retract the image whose manifest was *found*.

    First it is said, so that `verify` refuses it from then on; then tags move. Run again it completes.

    :param when: UTC, "2026-11-22T17:05:16Z".
    :raises ConfigError: no reason.
    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    told = retraction("", found.digest, reason=reason, when=when)
    listed = catalog(reading, opener)
    ours = next((one for one in listed if one.digest == found.digest), None)
    said = None
    if not (opener.looks and ours and ours.retracted):  # what nobody vouches for may not silence us
        subject = descriptor(MANIFEST_TYPE, found.digest, len(found.data))
        [said] = attach(reading.registry, reading.repository, subject, [sealer.seal(told)])
    moving = [tag for tag in (ours.tags if ours else ()) if not undated(tag)]
    others = [one for one in listed if one.digest != found.digest and one.good]
    moved = tuple(_move(reading, tag, others, matrix, sealer) for tag in moving)
    return Retracted(digest=found.digest, statement=said, moved=moved)


def _move(
    reading: RepositoryReader, tag: str, others: Sequence[Listed], matrix: Matrix, sealer: Sealer
) -> Moved:
    """To the newest of *others* that this name would fit; where there is none, the name goes.

    An image that was not published under it gets a statement that it is now.
    """
    best = max(
        (
            (numbers(named.torch), numbers(named.cuda), day, dated, own, one.digest)
            for one in others
            for dated, own, named, day in _dated(one)
            if tag == own or tag in aliases_for(own, matrix)
        ),
        default=None,
    )
    if best is None:
        return Moved(tag=tag, to=None, gone=delete_tag(reading.registry, reading.repository, tag))
    *_, dated, own, digest = best
    manifest = reading.require(digest).data
    [there] = (one for one in others if one.digest == digest)
    if there.names is not None and tag not in there.names:
        subject = descriptor(MANIFEST_TYPE, digest, len(manifest))
        said = sealer.seal(publication(split_format(own)[0], digest, [tag]))
        attach(reading.registry, reading.repository, subject, [said])
    put(reading.registry, reading.repository, manifest, tag)
    return Moved(tag=tag, to=dated)


def _dated(one: Listed) -> list[tuple[str, str, ParsedTag, str]]:
    """The dated tags of an image: itself, the tag without the day, what that says, the day.

    One that was moved to it by somebody, so that it was not published under it, is left out.
    """
    found = []
    for tag in sorted(set(one.tags) - set(one.misnamed)):
        parts = undated(tag)
        if parts and (named := parse_name(split_format(parts[0])[0])):
            found.append((tag, parts[0], named, parts[1]))
    return found
