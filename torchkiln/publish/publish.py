"""ClearedImage → PublishedImage: the tested digest, what goes with it, a tag that never moves, tags that do.

In this order, so that nothing that can be seen is ever wrong, whenever it ends: blobs, the manifest by its
digest, the statements, the dated tag, the moving ones. Run again it completes what lacks. The manifest is
read once: the bytes whose digest was cleared are those that get the tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchkiln.attest.publication import publication
from torchkiln.attest.retraction import reason_of
from torchkiln.attest.signers import FORMS, LIMIT, Sealer, of_signed_report
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import ConfigError, GateRefused, RegistryError, VerificationFailed
from torchkiln.gate.clearance import CLEARANCE, clearance
from torchkiln.gate.gate import ClearedImage
from torchkiln.model.digest import Digest
from torchkiln.oci.artifact import Artifact, Referrer, manifest_of
from torchkiln.oci.image import MANIFEST_TYPE, descriptor, digest_of
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publish.attached import Attached, Opener, attached
from torchkiln.publish.names import Names, demand_movable
from torchkiln.registry.naming import put
from torchkiln.registry.push import Pushed, PushOptions, push
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.referrers import attach, content, referrers
from torchkiln.registry.session import Registry
from torchkiln.smoke.attestation import PREDICATE, statement_of

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # says nothing but: this image, by me


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyImage:
    """An image that the gate cleared, with all that is to go with it."""

    cleared: ClearedImage
    image: ImageOnDisk
    statements: tuple[Statement, ...]  # beside what the gate says
    names: Names


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedImage:
    """An image in a registry, with all that goes with it."""

    pushed: Pushed
    names: Names
    attached: tuple[tuple[str, Digest], ...]  # (predicate type, manifest's digest), those that were there too
    override: str | None

    @property
    def tags(self) -> tuple[str, ...]:
        return self.names.all


def publish(
    ready: ReadyImage,
    registry: Registry,
    repository: Repository,
    sealer: Sealer,
    opener: Opener,
    options: PushOptions,
    say: Callable[[str], None] = lambda _: None,
) -> PublishedImage:
    """Bring the image, which is the one that was cleared, into *repository*, with the statements of it.

    The gate's decision, the reports that it rests on, its names and a bare signature go along by themselves.

    :param opener: whose retractions count.
    :param say: hears of retractions that do not count.
    :raises ConfigError: the image is another one; a tag is none, or must not move.
    :raises GateRefused: this very image was retracted by one who is trusted, and nobody overrides that.
    :raises VerificationFailed: the layout's bytes are not what they are called; no tag was set.
    :raises RegistryError: the registry refuses, cannot be reached, or has another image under the dated tag.
    """
    cleared, image, names = ready.cleared, ready.image, ready.names
    if image.manifest != cleared.judged.image:
        raise ConfigError(f"{image.ref} is {image.manifest}, and {cleared.judged.image} was cleared")
    demand_movable(names)
    reading = RepositoryReader(registry, repository)
    _demand_free(reading, names.dated, image.manifest)
    there = referrers(reading, image.manifest, FORMS)
    if there:
        _demand_not_retracted(cleared, attached(reading, image.manifest, opener), say)
    pushed = push(image, registry, repository, options)
    subject = descriptor(MANIFEST_TYPE, image.manifest, len(pushed.manifest))
    named = publication(cleared.judged.tag, image.manifest, names.all)
    wanted = _artifacts(cleared, [*ready.statements, named])
    going_with = _attached(reading, there, subject, wanted, sealer)
    if names.dated:
        _demand_free(reading, names.dated, image.manifest)  # the push may have taken an hour
    for tag in names.all:
        put(registry, repository, pushed.manifest, tag)
    return PublishedImage(pushed=pushed, names=names, attached=going_with, override=cleared.override)


def _artifacts(
    cleared: ClearedImage, statements: Sequence[Statement]
) -> Iterator[tuple[str, Statement | Artifact]]:
    """(predicate type, what the sealer is to say, or what somebody else has said and signed)."""
    judged = cleared.judged
    yield SIGNATURE, statement("", judged.image, SIGNATURE, {})
    for told in statements:
        yield told.kind, told
    for signed_report in judged.signed_reports:
        if signed_report.report.image == judged.image:
            yield PREDICATE, of_signed_report(signed_report) or statement_of(signed_report.report)
    yield CLEARANCE, clearance(cleared)


def _attached(
    reading: RepositoryReader,
    there: Sequence[Referrer],
    subject: Mapping[str, Any],
    wanted: Iterable[tuple[str, Statement | Artifact]],
    sealer: Sealer,
) -> tuple[tuple[str, Digest], ...]:
    """What is there already, by whoever seals here, stays as it is: signatures of one thing may differ."""
    known = {one.digest for one in there}
    found: list[tuple[str, Digest]] = []
    lacking: list[tuple[str, Artifact]] = []
    try:
        for kind, one in wanted:
            if isinstance(one, Statement):
                if same := _same(one, reading, there, sealer):
                    found.append((kind, same))
                    continue
                one = sealer.seal(one)
            name = digest_of(manifest_of(one, subject))
            if name in known:
                found.append((kind, name))
            else:
                lacking.append((kind, one))
    finally:  # where sealing failed, too: what was sealed without a key stands in a public log already
        names = attach(reading.registry, reading.repository, subject, [artifact for _, artifact in lacking])
    return (*found, *zip((kind for kind, _ in lacking), names, strict=True))


def _same(
    told: Statement, reading: RepositoryReader, there: Sequence[Referrer], sealer: Sealer
) -> Digest | None:
    """What there is by the same sealer and says the same."""
    for one in there:
        if told.kind in one.annotations.values() and _is(told, reading, one, told.image, sealer):
            return one.digest
    return None


def _is(told: Statement, reading: RepositoryReader, one: Referrer, image: Digest, sealer: Sealer) -> bool:
    try:
        data, kind = content(reading, one, image, FORMS, LIMIT)
    except VerificationFailed:  # damaged, or not ours: ours goes beside it
        return False
    return sealer.sealed(told, data, kind)


def _demand_free(reading: RepositoryReader, dated: str | None, image: Digest) -> None:
    there = reading.digest(dated) if dated else None
    if there not in (None, image):
        raise RegistryError(
            f"{reading.repository}:{dated} is {there} already, and such a tag never moves",
            hint="publish tomorrow, or under a day of its own: --dated 20261122b",
        )


def _demand_not_retracted(cleared: ClearedImage, there: Attached, say: Callable[[str], None]) -> None:
    for text in there.damaged:
        say(f"not read: {text}")
    for reason in there.unheeded:
        say(f"a retraction that no trusted key signed does not count: {reason}")
    if cleared.override is not None:
        return
    for one in there.retractions:
        if not one.signers:
            say(f"a retraction that nobody signed does not count: {_reason(one.statement)}")
            continue
        raise GateRefused(
            f"{cleared.judged.tag} ({cleared.judged.image[:19]}) was retracted",
            missing=[("retraction", _reason(one.statement))],
            hint='build another image; or publish it in spite of that: --override "REASON"',
        )


def _reason(told: Statement) -> str:
    try:
        return reason_of(told, where="retraction")[0]
    except VerificationFailed as error:
        return error.message
