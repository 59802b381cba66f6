"""An image in a registry → what is proved of it from there alone; or everything that is wrong.

Manifest, config and what goes with the image are fetched, some hundred kilobytes; layers only where they are
to be read. What a trusted key signed counts; what others put beside it does not, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from torchkiln.attest.provenance import PROVENANCE, Origin, origin
from torchkiln.attest.publication import PUBLICATION, published_names
from torchkiln.attest.retraction import reason_of
from torchkiln.attest.signers import Opened
from torchkiln.build.predicted_digest import predicted_blobs
from torchkiln.errors import KilnError
from torchkiln.gate.clearance import CLEARANCE, Decision, decision_of, prevailing
from torchkiln.gate.gate import judge
from torchkiln.lock.lock import lock_digest
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.tags import aliases_for, misfit, tag_of, undated
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.layer_format import tag_suffix
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.model.recipe import RECIPE
from torchkiln.model.report import SignedReport
from torchkiln.oci.image import describe
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publish.attached import NOT_VERIFIED, Attached, Opener, attached
from torchkiln.publish.publish import SIGNATURE
from torchkiln.registry.reading import RepositoryReader
from torchkiln.sbom.matches import matches_lock
from torchkiln.sbom.statements import CYCLONEDX, SPDX, document_of
from torchkiln.smoke.attestation import PREDICATE, report_of
from torchkiln.smoke.suite import Suite

_VERSION = "org.opencontainers.image.version"
_MOST = 20  # differences of an SBOM that are told


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One thing that was looked at."""

    what: str
    good: bool
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """All that was looked at, and what the provenance tells of how to build the image again."""

    points: tuple[Point, ...]
    origin: Origin | None
    there: Attached


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What whoever looks holds an image against."""

    policy: Policy
    suite: Suite
    matrix: Matrix  # whose aliases count
    at: datetime  # now
    planned: Callable[[LockedCell], ImagePlan]  # the plan of a lock


def verify(
    reading: RepositoryReader, image: ImageOnDisk, opener: Opener, rules: Rules, *, tag: str | None = None
) -> Verification:
    """Look at all that goes with *image* in the repository of *reading*.

    :param tag: by which it was asked for; None: by its digest alone.
    :raises RegistryError: the registry refuses, or cannot be reached.
    :raises VerificationFailed: more goes with it than is read.
    """
    there = attached(reading, image.manifest, opener)
    statements = there.by_kind
    points = list(_of_signatures(there, opener))
    told, more = _origin(statements)
    points += more
    if told is not None:
        points.append(_of_lock(told, image, rules.planned))
        points.append(_of_reports(statements, told.locked, image.manifest, rules, opener))
        points.append(
            of_sboms(there, lambda data, name: matches_lock(data, image.manifest, told.locked, where=name))
        )
        if tag is not None:
            points.append(_of_name(tag, statements, tag_of(told.locked.resolution), image, rules.matrix))
    points += _of_retractions(there)
    return Verification(points=tuple(points), origin=told, there=there)


def _of_signatures(there: Attached, opener: Opener) -> Iterator[Point]:
    for text in there.damaged:
        yield Point(what="statements", good=False, text=text)
    count = sum(map(len, there.by_kind.values()))
    others = f"; {there.strangers} by others, which do not count" if there.strangers else ""
    if there.other_role:
        others += f" ({there.other_role} signed by a trusted key in another role)"
    if not opener.looks:
        text = f"{count} statements{others}; {NOT_VERIFIED}"
        yield Point(what="signatures", good=True, text=text)
        return
    signed = there.by_kind.get(SIGNATURE, ())
    who = sorted({signer for one in signed for signer in one.signers})
    text = f"{count} statements by {', '.join(who)}{others}" if who else f"no trusted key signed it{others}"
    yield Point(what="signatures", good=bool(who), text=text)


def _origin(statements: Mapping[str, Sequence[Opened]]) -> tuple[Origin | None, list[Point]]:
    """Several must name one lock: a registry says in which order they come."""
    found = statements.get(PROVENANCE, ())
    if not found:
        return None, [Point(what="provenance", good=False, text="none is there that counts")]
    try:
        origins = [origin(one.statement, where="provenance") for one in found]
    except KilnError as error:
        return None, [Point(what="provenance", good=False, text=error.message)]
    if len({lock_digest(one.locked) for one in origins}) > 1:
        text = f"{len(origins)} of them name different locks: the image has one"
        return None, [Point(what="provenance", good=False, text=text)]
    told = max(origins, key=lambda one: (one.recipe == RECIPE, len(one.locked.layers), one.source))
    source = f", source {told.source[:12]}" if told.source else ""
    text = f"{tag_of(told.locked.resolution)}, {len(told.locked.wheels)} wheels{source}, by {told.builder}"
    return told, [Point(what="provenance", good=True, text=text)]


def _of_name(
    tag: str, statements: Mapping[str, Sequence[Opened]], cell: str, image: ImageOnDisk, matrix: Matrix
) -> Point:
    """The tag by which it was asked for, held against its lock, its form, and the names that were signed."""
    own = cell + tag_suffix(image.layer_format)
    if (called := (image.config.get("config", {}).get("Labels") or {}).get(_VERSION, cell)) != cell:
        return Point(what="name", good=False, text=f"the image calls itself {called}, and its lock {cell}")
    if why := misfit(tag, own, matrix):
        return Point(what="name", good=False, text=f"{tag} is another image's name: {why}")
    names: set[str] = set()
    try:
        for one in statements.get(PUBLICATION, ()):
            names |= published_names(one.statement, where="names")
        decisions = [decision_of(one.statement, where="clearance") for one in statements.get(CLEARANCE, ())]
    except KilnError as error:
        return Point(what="name", good=False, text=error.message)
    if tag in names:
        return Point(what="name", good=True, text=f"it was published as {tag}")
    if names:
        text = f"it was published as {', '.join(sorted(names))}, not as {tag}: the tag was moved"
        return Point(what="name", good=False, text=text)
    if any(one.names_signed for one in decisions):
        text = f"the statement of its names is missing, so that nothing signed says it is {tag}"
        return Point(what="name", good=False, text=text)
    if (undated(tag) or (tag, ""))[0] == own or tag in aliases_for(own, matrix):
        text = f"{tag} fits its lock; it was published before names were signed"
        return Point(what="name", good=True, text=text)
    text = f"{tag} is neither its tag nor an alias of it, and nothing signed says that it was published so"
    return Point(what="name", good=False, text=text)


def _of_lock(told: Origin, image: ImageOnDisk, planned: Callable[[LockedCell], ImagePlan]) -> Point:
    """Configuration and layers are computed from the lock and compared."""
    if told.recipe != RECIPE:
        text = f"made by recipe {told.recipe}, and this torchkiln has {RECIPE}: not computed again"
        return Point(what="lock", good=True, text=text)
    try:
        plan = planned(told.locked)
    except KilnError as error:
        return Point(what="lock", good=False, text=error.message)
    blobs = predicted_blobs(plan)
    if len(blobs) != len(image.layers):
        text = f"it has {len(image.layers)} layers, and its lock gives {len(blobs)}"
        return Point(what="lock", good=False, text=text)
    sides = list(zip(plan.layers, blobs, image.layers, strict=True))
    wrong = [layer.title for layer, blob, there in sides if blob and blob.diff_id != there.diff_id]
    if wrong:
        return Point(what="lock", good=False, text=f"other layers than its lock gives: {', '.join(wrong)}")
    known = [
        ImageLayer(
            title=layer.title,
            blob=blob or Blob(digest=there.digest, diff_id=there.diff_id, size=there.size, unpacked=0),
        )
        for layer, blob, there in sides
    ]
    if describe(plan, known).config_digest != image.config_digest:
        text = "its configuration is not the one that its lock gives by this source"
        return Point(what="lock", good=False, text=text)
    unknown = blobs.count(None)
    also = f"; {unknown} layers are not recorded in it" if unknown else ""
    return Point(what="lock", good=True, text=f"configuration and layers are those that it gives{also}")


def _of_reports(
    statements: Mapping[str, Sequence[Opened]],
    locked: LockedCell,
    image: Digest,
    rules: Rules,
    opener: Opener,
) -> Point:
    """The reports, held against the policy again; where another suite made them, by what it held.

    They may be of any age, for they were young enough when the image was published; not of the future.
    """
    suite = rules.suite
    signed_reports, wrong = [], []
    for number, one in enumerate(statements.get(PREDICATE, ()), start=1):
        name = f"report {number}"
        try:
            report = report_of(one.statement, where=name)
        except KilnError as error:
            wrong.append(error.message)
            continue
        signed_reports.append(
            SignedReport(
                name=name, report=report, signed=one.signed, signers=one.signers, envelope=one.envelope
            )
        )
    decided, faults = _decision(statements)
    wrong += faults
    also = ""
    if decided and decided.suite != suite.digest:
        suite = replace(suite, digest=decided.suite, checks=decided.checks)
        also = f", by another suite than the one that is here ({decided.suite[:19]})"
    policy = rules.policy.of(locked.resolution)
    demands = replace(policy, signed=opener.looks, strangers=not opener.looks, report_age=0)
    judged = judge(signed_reports, demands, locked, suite, image=image, at=rules.at)
    wrong += [f"{what}: {why}" for what, why in judged.missing]
    if decided and decided.override:
        wrong.insert(0, f"published in spite of the gate: {decided.override}")
    if wrong:
        return Point(what="smoke", good=False, text="\n".join(wrong))
    text = f"{len(judged.passed)} checks passed{also}; on {', '.join(judged.gpus) or 'no GPU'}"
    return Point(what="smoke", good=True, text=text)


def _decision(statements: Mapping[str, Sequence[Opened]]) -> tuple[Decision | None, list[str]]:
    """The gate's."""
    try:
        found = [decision_of(one.statement, where="clearance") for one in statements.get(CLEARANCE, ())]
    except KilnError as error:
        return None, [error.message]
    return prevailing(found), [] if found else ["no decision of the gate is there that counts"]


def of_sboms(there: Attached, differences: Callable[[bytes, str], Sequence[str]]) -> Point:
    """Both documents, each held by *differences* against what is known of the image."""
    wrong: list[str] = []
    for kind, name in ((SPDX, "SPDX"), (CYCLONEDX, "CycloneDX")):
        documents = there.all(kind)
        if not documents:
            wrong.append(f"no {name} is there that counts")
        for told in documents:
            try:
                wrong += [f"{name}: {one}" for one in differences(document_of(told), name)]
            except KilnError as error:
                wrong.append(error.message)
    if wrong:
        more = [f"and {len(wrong) - _MOST} more"] if len(wrong) > _MOST else []
        return Point(what="sbom", good=False, text="\n".join([*wrong[:_MOST], *more]))
    return Point(what="sbom", good=True, text="SPDX and CycloneDX tell what is in it")


def _of_retractions(there: Attached) -> Iterator[Point]:
    for one in there.retractions:
        try:
            reason, when = reason_of(one.statement, where="retraction")
        except KilnError as error:
            reason, when = error.message, "?"
        yield Point(what="retraction", good=False, text=f"retracted at {when}: {reason}")
    for reason in there.unheeded:
        yield Point(what="retraction", good=True, text=f"no trusted key signed it, does not count: {reason}")
