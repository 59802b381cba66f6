"""Publishes a cleared image with its statements, and sets its tags.

The order is: blobs, the manifest by its digest, the statements, the dated tag, the moving tags. An
interrupted run leaves no incomplete image under a tag, and the next run completes it. The manifest is read
once: the tags are set for the bytes whose digest was cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchkiln.attest.signers import FORMS, LIMIT, Signer, Trust, of_signed_report
from torchkiln.attest.statement import Statement, publication, statement
from torchkiln.errors import ConfigError, GateRefused, RegistryError, VerificationFailed
from torchkiln.gate.clearance import CLEARANCE, clearance
from torchkiln.gate.gate import ClearedImage
from torchkiln.model.digest import Digest
from torchkiln.oci.image import MANIFEST_TYPE, Artifact, Referrer, descriptor, digest_of, manifest_of
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publishing.attached import AttachedStatements, attached
from torchkiln.publishing.names import ImageTags, demand_movable
from torchkiln.registry.push import Pushed, PushOptions, push, put
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.referrers import attach, listing, payload_of
from torchkiln.registry.session import Registry
from torchkiln.smoke.attestation import PREDICATE, statement_of

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # the statement contains only the image's digest


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedImage:
    cleared: ClearedImage
    image: ImageOnDisk
    statements: tuple[Statement, ...]  # without the gate's decision and its reports
    names: ImageTags


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedImage:
    pushed: Pushed
    names: ImageTags
    attached: tuple[tuple[str, Digest], ...]  # (predicate type, manifest's digest), also of earlier runs
    override: str | None

    @property
    def tags(self) -> tuple[str, ...]:
        return self.names.all


def publish(
    prepared: PreparedImage,
    registry: Registry,
    repository: Repository,
    signer: Signer,
    trust: Trust,
    options: PushOptions,
    say: Callable[[str], None] = lambda _: None,
) -> PublishedImage:
    """Push the cleared image and its statements to *repository*, and set its tags.

    The gate's decision, its reports, a statement of the tags, and a signature in cosign's form are attached,
    too.

    :param trust: the keys and identities that can retract the image.
    :param say: receives messages about invalid statements and ignored retractions.
    :raises ConfigError: the image is not the cleared one, or a tag is invalid or must not move.
    :raises GateRefused: the image was retracted, and there is no override.
    :raises VerificationFailed: the layout's bytes do not match their digests; no tag was set.
    :raises RegistryError: a request failed, or the dated tag already exists for another image.
    """
    cleared, image, names = prepared.cleared, prepared.image, prepared.names
    if image.manifest != cleared.result.image:
        raise ConfigError(
            f"{image.ref}: digest mismatch: it is {image.manifest}, but {cleared.result.image} was cleared"
        )
    demand_movable(names)
    reading = RepositoryReader(registry, repository)
    _demand_free(reading, names.dated, image.manifest)
    present = listing(reading, image.manifest, FORMS).selected
    if present:
        _demand_not_retracted(cleared, attached(reading, image.manifest, trust), say)
    pushed = push(image, registry, repository, options)
    subject = descriptor(MANIFEST_TYPE, image.manifest, len(pushed.manifest))
    tags_statement = publication(cleared.result.tag, image.manifest, names.all)
    items = _items(cleared, [*prepared.statements, tags_statement])
    digests = _attach_missing(reading, present, subject, items, signer)
    if names.dated:
        _demand_free(reading, names.dated, image.manifest)  # again, because a push can take an hour
    for tag in names.all:
        put(registry, repository, pushed.manifest, tag)
    return PublishedImage(pushed=pushed, names=names, attached=digests, override=cleared.override)


def _items(
    cleared: ClearedImage, statements: Sequence[Statement]
) -> Iterator[tuple[str, Statement | Artifact]]:
    """What to attach to the image: (predicate type, statement to sign or artifact that is already signed)."""
    result = cleared.result
    yield SIGNATURE, statement("", result.image, SIGNATURE, {})
    for made in statements:
        yield made.kind, made
    for signed_report in result.counted:
        yield PREDICATE, of_signed_report(signed_report) or statement_of(signed_report.report)
    yield CLEARANCE, clearance(cleared)


def _attach_missing(
    reading: RepositoryReader,
    present: Sequence[Referrer],
    subject: Mapping[str, Any],
    items: Iterable[tuple[str, Statement | Artifact]],
    signer: Signer,
) -> tuple[tuple[str, Digest], ...]:
    """Sign and attach the *items* that are not in *present*, the referrers that the image already has."""
    known = {referrer.digest for referrer in present}
    digests: list[tuple[str, Digest]] = []
    missing: list[tuple[str, Artifact]] = []
    try:
        for kind, item in items:
            if isinstance(item, Statement):
                if same := _find(item, reading, present, signer):
                    digests.append((kind, same))
                    continue
                artifact = signer.sign(item)
            else:
                artifact = item
            digest = digest_of(manifest_of(artifact, subject))
            if digest in known:
                digests.append((kind, digest))
            else:
                missing.append((kind, artifact))
    finally:  # also if signing failed: a keyless signature is in the public log already
        attached = attach(
            reading.registry, reading.repository, subject, [artifact for _, artifact in missing]
        )
    return (*digests, *zip((kind for kind, _ in missing), attached, strict=True))


def _find(
    statement: Statement, reading: RepositoryReader, present: Sequence[Referrer], signer: Signer
) -> Digest | None:
    """The referrer with the same statement by the same signer; None: there is none."""
    for referrer in present:
        if statement.kind not in referrer.annotations.values():
            continue
        try:
            payload = payload_of(reading, referrer, statement.image, FORMS)
            data = reading.small(payload.digest, LIMIT)
        except VerificationFailed:  # damaged, or made by another tool
            continue
        if signer.matches(statement, data, payload.media_type):
            return referrer.digest
    return None


def _demand_free(reading: RepositoryReader, dated: str | None, image: Digest) -> None:
    present = reading.digest(dated) if dated else None
    if present not in (None, image):
        raise RegistryError(
            f"{reading.repository}:{dated} already exists as {present}; a dated tag never moves",
            hint="publish tomorrow, or choose another suffix: --dated 20261122b",
        )


def _demand_not_retracted(
    cleared: ClearedImage, statements: AttachedStatements, say: Callable[[str], None]
) -> None:
    for text in statements.damaged:
        say(f"invalid statement: {text}")
    for reason in statements.untrusted_retractions:
        say(f"retraction ignored, not signed by a trusted key: {reason}")
    if cleared.override is not None:
        return
    for retraction in statements.retractions:
        if not retraction.signed:
            say(f"retraction ignored, not signed: {retraction.reason}")
            continue
        raise GateRefused(
            f"{cleared.result.tag} ({cleared.result.image[:19]}) was retracted",
            missing=[("retraction", retraction.reason)],
            hint='build another image, or publish this one with --override "REASON"',
        )
