"""Verifies an image in a registry from its manifest, config and statements, and returns all faults.

These documents have some hundred kilobytes; layers are not downloaded. Statements that no trusted key or
identity signed are ignored, and their number is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from torchkiln.attest.provenance import PROVENANCE, Origin, origin
from torchkiln.attest.signers import Trust
from torchkiln.engine.known import predicted_blobs
from torchkiln.errors import KilnError
from torchkiln.gate.gate import judge
from torchkiln.gate.gpu_stack import earlier_images
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.tags import misfit, tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer, tag_suffix
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.model.recipe import RECIPE
from torchkiln.oci.image import describe
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publishing.attached import (
    NOT_VERIFIED,
    AttachedStatements,
    Point,
    attached,
    of_sbom,
    reports_in,
)
from torchkiln.publishing.publish import SIGNATURE
from torchkiln.registry.reading import RepositoryReader
from torchkiln.sbom.matches import matches_lock
from torchkiln.smoke.attestation import PREDICATE
from torchkiln.smoke.suite import Suite
from torchkiln.store.store import Store

_VERSION = "org.opencontainers.image.version"
_EVER = 36_500  # days: the gate checked the age of the runs at publication


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The results of all steps, and the provenance for a rebuild."""

    points: tuple[Point, ...]
    origin: Origin | None
    statements: AttachedStatements


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyCriteria:
    policy: Policy
    suite: Suite
    matrix: Matrix  # defines the aliases
    at: datetime  # now
    planned: Callable[[LockedCell], ImagePlan]  # makes the plan of a lock
    kinds: tuple[VerifiedKind, ...]  # images of no kind are those of cells

    def kind_of(self, image: ImageOnDisk) -> VerifiedKind | None:
        """The kind of *image*; None: it is the image of a cell."""
        return next((kind for kind in self.kinds if kind.is_mine(image)), None)


class VerifiedKind(Protocol):
    """A kind of images that are built on those of cells, such as projects."""

    def is_mine(self, image: ImageOnDisk) -> bool: ...

    def points(
        self,
        statements: AttachedStatements,
        image: ImageOnDisk,
        criteria: VerifyCriteria,
        *,
        signed: bool,
        tag: str | None,
    ) -> Iterable[Point]:
        """Verify *image* by its *statements*, with *signed* reports; *tag* is the name to verify, or None."""
        ...

    def parent_points(
        self,
        reading: RepositoryReader,
        image: ImageOnDisk,
        folder: Path,
        verify: Callable[[ImageOnDisk], Verification],
        store: Store | None = None,
    ) -> Iterable[Point]:
        """Verify the parent of *image* with *verify*, and that *image* does not change it.

        :param folder: for the documents of the parent image.
        :param store: a cache; the downloaded layers of *image* are compared. None: they are not compared.
        :raises RegistryError: a request failed.
        """
        ...


def verify(
    reading: RepositoryReader,
    image: ImageOnDisk,
    trust: Trust,
    criteria: VerifyCriteria,
    *,
    tag: str | None = None,
) -> Verification:
    """Verify *image* and its statements in the repository of *reading*.

    :param tag: the tag to verify; None: the image was named by its digest.
    :raises RegistryError: a request failed.
    :raises VerificationFailed: it has too many statements.
    """
    statements = attached(reading, image.manifest, trust)
    points = list(_of_signatures(statements, trust))
    if kind := criteria.kind_of(image):
        points += kind.points(statements, image, criteria, signed=trust.verifies, tag=tag)
        points += _of_retractions(statements)
        return Verification(points=tuple(points), origin=None, statements=statements)
    provenance, point = _origin(statements)
    points.append(point)
    if provenance is not None:
        points.append(_of_lock(provenance, image, criteria.planned))
        points.append(_of_reports(statements, provenance.locked, image.manifest, criteria, trust))
        points.append(of_sbom(statements, lambda data: matches_lock(data, image.manifest, provenance.locked)))
        if tag is not None:
            points.append(
                _of_name(tag, statements, tag_of(provenance.locked.resolution), image, criteria.matrix)
            )
    points += _of_retractions(statements)
    return Verification(points=tuple(points), origin=provenance, statements=statements)


def _of_signatures(statements: AttachedStatements, trust: Trust) -> Iterator[Point]:
    for text in statements.damaged:
        yield Point("statements", False, text)
    count = sum(map(len, statements.by_kind.values()))
    others = f"; {statements.untrusted} by others ignored" if statements.untrusted else ""
    if statements.other_role:
        others += f" ({statements.other_role} signed by a trusted key in another role)"
    if not trust.verifies:
        yield Point("signatures", True, f"{count} statements{others}; {NOT_VERIFIED}")
        return
    signatures = statements.by_kind.get(SIGNATURE, ())
    signers = sorted({signer for signature in signatures for signer in signature.signers})
    signed = f"{count} statements by {', '.join(signers)}" if signers else "not signed by a trusted key"
    yield Point("signatures", bool(signers), f"{signed}{others}")


def _origin(statements: AttachedStatements) -> tuple[Origin | None, Point]:
    """The provenance. If there are several, all must have the same lock: their order is not signed."""
    found = statements.all(PROVENANCE)
    if not found:
        return None, Point("provenance", False, "no trusted provenance found")
    try:
        origins = [origin(statement, where="provenance") for statement in found]
    except KilnError as error:
        return None, Point("provenance", False, error.message)
    if len({lock_digest(candidate.locked) for candidate in origins}) > 1:
        text = f"{len(origins)} statements have different locks"
        return None, Point("provenance", False, text)
    provenance = max(
        origins,
        key=lambda candidate: (candidate.recipe == RECIPE, len(candidate.locked.layers), candidate.source),
    )
    source = f", source {provenance.short_source}" if provenance.source else ""
    tag, wheels = tag_of(provenance.locked.resolution), len(provenance.locked.wheels)
    text = f"{tag}, {wheels} wheels{source}, by {provenance.builder}"
    return provenance, Point("provenance", True, text)


def _of_name(
    tag: str, statements: AttachedStatements, cell: str, image: ImageOnDisk, matrix: Matrix
) -> Point:
    """Compare the requested tag with the lock, the layer format, and the signed names."""
    own = cell + tag_suffix(image.layer_format)
    if (label := (image.config.get("config", {}).get("Labels") or {}).get(_VERSION, cell)) != cell:
        return Point("name", False, f"the version label is {label}, but the lock is for {cell}")
    if why := misfit(tag, own, matrix):
        return Point("name", False, f"{tag} is another image's name: {why}")
    try:
        names = statements.names()
    except KilnError as error:
        return Point("name", False, error.message)
    if tag in names:
        return Point("name", True, f"it was published as {tag}")
    if names:
        text = f"it was published as {', '.join(sorted(names))}, not as {tag}: the tag was moved"
        return Point("name", False, text)
    return Point("name", False, f"the statement of its names is missing: no signature confirms {tag}")


def _of_lock(provenance: Origin, image: ImageOnDisk, planned: Callable[[LockedCell], ImagePlan]) -> Point:
    """Compute configuration and layers from the lock, and compare them with those of *image*."""
    if provenance.recipe != RECIPE:
        text = f"not compared: made by recipe {provenance.recipe}, but this torchkiln has recipe {RECIPE}"
        return Point("lock", True, text)
    try:
        plan = planned(provenance.locked)
    except KilnError as error:
        return Point("lock", False, error.message)
    blobs = predicted_blobs(plan)
    if len(blobs) != len(image.layers):
        return Point("lock", False, f"it has {len(image.layers)} layers, but its lock has {len(blobs)}")
    pairs = list(zip(plan.layers, blobs, image.layers, strict=True))
    if wrong := [layer.title for layer, blob, actual in pairs if blob and blob.diff_id != actual.diff_id]:
        return Point("lock", False, f"layers differ from its lock: {', '.join(wrong)}")
    known = [
        ImageLayer(
            title=layer.title,
            blob=blob or Blob(digest=actual.digest, diff_id=actual.diff_id, size=actual.size, unpacked=0),
        )
        for layer, blob, actual in pairs
    ]
    if describe(plan, known).config_digest != image.config_digest:
        return Point("lock", False, "the configuration differs from that of its lock and this source")
    unknown = blobs.count(None)
    also = f"; {unknown} layers are not recorded in the lock" if unknown else ""
    return Point("lock", True, f"configuration and layers match{also}")


def _of_reports(
    statements: AttachedStatements, locked: LockedCell, image: Digest, criteria: VerifyCriteria, trust: Trust
) -> Point:
    """Check the reports against the policy.

    If the image was published with another suite, the gate's decision lists the checks of that suite.
    Old reports are accepted, because the gate checked their age at publication; reports from the future are
    not.
    """
    suite = criteria.suite
    signed_reports, wrong = reports_in(statements.by_kind.get(PREDICATE, ()))
    others, faults = reports_in(statements.other_reports, "report of another image")
    wrong += faults
    decision = None
    try:
        decision = statements.decision()
        wrong += [] if decision else ["no trusted decision of the gate found"]
    except KilnError as error:
        wrong.append(error.message)
    locks = {lock_digest(kept): kept for kept in decision.locks} if decision else {}
    also = ""
    if decision and decision.suite != suite.digest:
        suite = replace(suite, digest=decision.suite, checks=decision.checks)
        also = f", by a different suite than this one ({decision.suite[:19]})"
    policy = criteria.policy.of(locked.resolution)
    policy = replace(
        policy,
        signed=trust.verifies,
        accept_unsigned=not trust.verifies,
        report_age=0,
        carry=policy.carry and _EVER,
    )
    earlier = tuple(earlier_images(others, locked, locks.get))
    result = judge(signed_reports, policy, locked, suite, image=image, earlier=earlier, at=criteria.at)
    wrong += [
        f"{other.name}: its subject is {other.report.image}, not this image"
        for other in others
        if other not in result.counted
    ]
    wrong += [f"{what}: {why}" for what, why in result.missing]
    if decision and decision.override:
        wrong.insert(0, f"published with --override: {decision.override}")
    if wrong:
        return Point("smoke", False, "\n".join(wrong))
    roots = dict.fromkeys(counted.report.root for counted in result.counted if counted.report.root)
    files = f"; files {' or '.join(roots)}" if roots else ""
    text = f"{len(result.passed)} checks passed{also}; on {', '.join(result.gpus) or 'no GPU'}{files}"
    return Point("smoke", True, text)


def _of_retractions(statements: AttachedStatements) -> Iterator[Point]:
    for retraction in statements.retractions:
        yield Point("retraction", False, f"retracted at {retraction.when}: {retraction.reason}")
    for reason in statements.untrusted_retractions:
        yield Point("retraction", True, f"ignored, not signed by a trusted key: {reason}")
