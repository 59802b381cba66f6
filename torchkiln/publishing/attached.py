"""Reads the statements that are attached to an image in a registry and signed by a trusted key or identity.

The kind of a statement follows from its signed content alone: anyone who can write to the registry can change
annotations and artifact types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torchkiln.attest.signers import FORMS, LIMIT, OpenedStatement, Trust
from torchkiln.attest.statement import PUBLICATION, Statement, is_retraction, published_names, reason_of
from torchkiln.errors import KilnError, UnknownFormat, VerificationFailed
from torchkiln.gate.clearance import CLEARANCE, Decision, decision_of, prevailing
from torchkiln.model.digest import Digest
from torchkiln.model.report import SignedReport
from torchkiln.oci.image import Referrer
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.referrers import Payload, listing, payload_of
from torchkiln.sbom.bill import CYCLONEDX
from torchkiln.smoke.attestation import PREDICATE, report_of

NOT_VERIFIED = "signatures not verified: no trusted key or identity given; add --trust publisher=PUBLIC.pem"
_MAX_DAMAGED = 20  # maximum damaged statements; if there are more, the download stops
_SHOWN = 20  # maximum differences of SBOMs in a message
_MAX_SHOWN = 3  # maximum retractions without a trusted signature that are shown
_JOBS = 4
_ALL = 32 << 20  # bytes of all statements of one image; a publication has about five million


@dataclass(frozen=True, kw_only=True, slots=True)
class Retracted:
    """A retraction: why and when the image was retracted, and whether a trusted signer says so."""

    reason: str
    when: str
    signed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachedStatements:
    """The statements attached to one image."""

    by_kind: Mapping[str, tuple[OpenedStatement, ...]]  # predicate type -> accepted statements
    damaged: tuple[str, ...]  # faults of statements that are altered, lost, or about another image
    untrusted: int  # number of ignored ones: no trusted signature, or an unknown format
    other_role: int = 0  # of the ignored ones: their key is trusted, but for other kinds of statements
    untrusted_retractions: tuple[str, ...] = ()  # the reasons in retractions without a trusted signature
    other_reports: tuple[OpenedStatement, ...] = ()  # accepted smoke reports of other images

    @property
    def retractions(self) -> tuple[Retracted, ...]:
        """The accepted retractions, of every version of their format."""
        found = (some for kind, some in self.by_kind.items() if is_retraction(kind))
        return tuple(_retracted(opened) for statements in found for opened in statements)

    def decision(self) -> Decision | None:
        """The gate's decision that counts; None: there is none.

        :raises VerificationFailed: a decision is invalid.
        """
        return prevailing([decision_of(found, where="clearance") for found in self.all(CLEARANCE)])

    def names(self) -> frozenset[str]:
        """The names under which the image was published.

        :raises VerificationFailed: a statement of names is invalid.
        """
        found = (published_names(statement, where="names") for statement in self.all(PUBLICATION))
        return frozenset().union(*found)

    def all(self, kind: str) -> tuple[Statement, ...]:
        """The statements of that *kind*, in the registry's order."""
        return tuple(opened.statement for opened in self.by_kind.get(kind, ()))


def attached(reading: RepositoryReader, image: Digest, trust: Trust) -> AttachedStatements:
    """Download and open the statements attached to *image*.

    :raises RegistryError: a request failed.
    :raises VerificationFailed: there are too many statements, bytes or damaged statements.
    """
    by_kind: dict[str, tuple[OpenedStatement, ...]] = {}
    damaged: list[str] = []
    untrusted_retractions: list[str] = []
    other_reports: list[OpenedStatement] = []
    untrusted = other_role = 0
    referrers = listing(reading, image, FORMS)
    documents = _documents(reading, referrers.selected, image)
    for referrer, document in zip(referrers.selected, documents, strict=True):
        where = f"referrer {referrer.digest[:19]}"
        try:
            if isinstance(document, VerificationFailed):
                raise document
            opened = trust.open(*document, where=where)
        except UnknownFormat:
            untrusted += 1
            continue
        except VerificationFailed as error:
            damaged.append(error.message)
            if len(damaged) > _MAX_DAMAGED:
                raise VerificationFailed(
                    f"{reading.repository}@{image[:19]}: more than {_MAX_DAMAGED} damaged statements, "
                    f"the first: {damaged[0]}",
                    hint="delete them from the registry, or use another image",
                ) from None
            continue
        statement = opened.statement
        counts = bool(opened.signers) or not trust.verifies
        if statement.image != image:
            if counts and statement.kind == PREDICATE:
                other_reports.append(opened)
            elif counts:
                damaged.append(f"{where}: its subject is {statement.image}, not this image")
            else:
                untrusted += 1
            continue
        if not counts:
            untrusted += 1
            other_role += opened.other_role
            if is_retraction(statement.kind) and len(untrusted_retractions) < _MAX_SHOWN:
                untrusted_retractions.append(_retracted(opened).reason[:200])
            continue
        by_kind[statement.kind] = (*by_kind.get(statement.kind, ()), opened)
    return AttachedStatements(
        by_kind=by_kind,
        damaged=tuple(damaged),
        untrusted=untrusted + referrers.others,
        other_role=other_role,
        untrusted_retractions=tuple(untrusted_retractions),
        other_reports=tuple(other_reports),
    )


def _retracted(opened: OpenedStatement) -> Retracted:
    try:
        reason, when = reason_of(opened.statement, where="retraction")
    except VerificationFailed as error:
        reason, when = error.message, "?"
    return Retracted(reason=reason.strip() or "no reason given", when=when, signed=bool(opened.signers))


def reports_in(
    statements: Sequence[OpenedStatement], name: str = "report"
) -> tuple[list[SignedReport], list[str]]:
    """The reports, called *name* and their number, and the faults of those that cannot be read."""
    reports, faults = [], []
    for number, opened in enumerate(statements, start=1):
        where = f"{name} {number}"
        try:
            report = report_of(opened.statement, where=where)
        except KilnError as error:
            faults.append(error.message)
            continue
        reports.append(
            SignedReport(
                name=where,
                report=report,
                signed=opened.signed,
                signers=opened.signers,
                envelope=opened.envelope,
            )
        )
    return reports, faults


@dataclass(frozen=True, slots=True)
class Point:
    what: str
    good: bool
    text: str


def of_sbom(
    statements: AttachedStatements,
    differences: Callable[[bytes], Sequence[str]],
    good: str = "CycloneDX matches the image",
) -> Point:
    """Check the SBOM with *differences*, which compares a document with the image; *good*: if it matches."""
    documents = statements.all(CYCLONEDX)
    wrong = [] if documents else ["no trusted CycloneDX document found"]
    for document in documents:
        try:
            wrong += differences(document.predicate.encode())
        except KilnError as error:
            wrong.append(error.message)
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        return Point("sbom", False, "\n".join([*wrong[:_SHOWN], *more]))
    return Point("sbom", True, good)


def _documents(
    reading: RepositoryReader, referrers: Sequence[Referrer], image: Digest
) -> list[tuple[bytes, str] | VerificationFailed]:
    """For each of the *referrers* of *image* the document with its media type, or its fault.

    :raises VerificationFailed: the documents have too many bytes in total; none is read.
    :raises RegistryError: a request failed.
    """

    def describe(referrer: Referrer) -> Payload | VerificationFailed:
        try:
            return payload_of(reading, referrer, image, FORMS)
        except VerificationFailed as error:
            return error

    def fetch(payload: Payload | VerificationFailed) -> tuple[bytes, str] | VerificationFailed:
        if isinstance(payload, VerificationFailed):
            return payload
        try:
            return reading.small(payload.digest, min(payload.size, LIMIT)), payload.media_type
        except VerificationFailed as error:
            return error

    with ThreadPoolExecutor(_JOBS, "referrers") as pool:
        try:
            payloads = list(pool.map(describe, referrers))
            if (total := sum(payload.size for payload in payloads if isinstance(payload, Payload))) > _ALL:
                raise VerificationFailed(
                    f"{reading.repository}: {image[:19]}: the statements attached to the image have {total}"
                    f" bytes in total, more than the limit of {_ALL}; none was read",
                    hint="delete the referrers that do not belong to the image",
                )
            return list(pool.map(fetch, payloads))
        except BaseException:  # a failure, or Ctrl-C: stop the requests in the other threads
            reading.registry.stop()
            raise
