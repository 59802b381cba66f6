"""Statement ⇄ Artifact: what is said of an image, signed or not, as it goes into a registry; and back.

A signed one is a Sigstore bundle laid out as cosign lays it out (its BUNDLE_SPEC); an unsigned one is the
statement itself, as BuildKit puts it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchkiln.attest import sigstore_bundle
from torchkiln.attest.dsse import PrivateKey, decode, fingerprint, seal, verify
from torchkiln.attest.roles import KeyInRole, keys_for, role_of
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.errors import UnknownFormat, VerificationFailed
from torchkiln.model.report import SignedReport
from torchkiln.model.roles import ROLES, Role
from torchkiln.oci.artifact import Artifact

FORMS = (PAYLOAD_TYPE, BUNDLE_TYPE)  # the media types in which we look for statements
LIMIT = 8 << 20  # bytes of an artifact: SBOMs have one; a JSON text takes up to thirty times its length
KIND = "dev.sigstore.bundle.predicateType"  # cosign's annotation
_PLAIN_KIND = "in-toto.io/predicate-type"  # BuildKit's


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Who may have signed without a key: as the certificates name jobs."""

    identity: str  # "https://git.example/team/repo/.github/workflows/publish.yml@refs/heads/main"
    issuer: str  # "https://token.actions.githubusercontent.com"
    roles: tuple[Role, ...] = ROLES  # in which its signatures count


class Sealer(Protocol):
    """Whoever vouches for what is said."""

    def seal(self, told: Statement) -> Artifact:
        """*told* as it goes into a registry."""

    def sealed(self, told: Statement, artifact: bytes, kind: str) -> bool:
        """Whether *artifact*, of that *kind*, is *told*, and vouched for by the same."""


@dataclass(frozen=True, slots=True)
class ByKey:
    """The holder of a key."""

    key: PrivateKey

    def seal(self, told: Statement) -> Artifact:
        """Signed anew."""
        envelope = seal(PAYLOAD_TYPE, payload(told), self.key)
        return bundled(envelope, fingerprint(self.key.public_key()), told.kind)

    def sealed(self, told: Statement, artifact: bytes, kind: str) -> bool:
        """Signatures of one key over one text may differ, so that bytes alone do not tell."""
        try:
            found = opened(artifact, kind, [KeyInRole(key=self.key.public_key())], where="")
        except VerificationFailed:
            return False
        return found.statement == told and bool(found.signers)


class Unsigned:
    """Nobody: whoever can write to the registry could have said it."""

    def seal(self, told: Statement) -> Artifact:
        """The statement itself."""
        return Artifact(kind=PAYLOAD_TYPE, data=payload(told), annotations=((_PLAIN_KIND, told.kind),))

    def sealed(self, told: Statement, artifact: bytes, kind: str) -> bool:
        """By its bytes."""
        return kind == PAYLOAD_TYPE and artifact == payload(told)


def bundled(envelope: bytes, signer: str | None, kind: str) -> Artifact:
    """An *envelope* that holds a statement of *kind*, by the key with the fingerprint *signer*."""
    return in_bundle(sigstore_bundle.wrap(envelope, signer), kind)


def in_bundle(bundle: bytes, kind: str) -> Artifact:
    """A Sigstore *bundle* that holds a statement of *kind*."""
    told = (("dev.sigstore.bundle.content", "dsse-envelope"), (KIND, kind))
    return Artifact(kind=BUNDLE_TYPE, data=bundle, annotations=told)


def of_signed_report(signed_report: SignedReport) -> Artifact | None:
    """The report as its signer handed it in; None: nobody signed it."""
    if signed_report.envelope is None:
        return None
    told = decode(signed_report.envelope, where=signed_report.name)
    kind = parse(told.payload, where=signed_report.name).kind
    signer = signed_report.signers[0] if signed_report.signers else None
    return bundled(signed_report.envelope, signer, kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A statement out of a registry."""

    statement: Statement
    signed: bool
    signers: tuple[str, ...]  # fingerprints of trusted keys, identities; empty: by nobody whom we trust
    envelope: bytes | None
    other_role: bool = False  # a trusted key signed it, but not one for statements of this kind


def opened(data: bytes, kind: str, trusted: Sequence[KeyInRole], *, where: str) -> Opened:
    """What the artifact *data* of that *kind* says, and which of *trusted* signed it; perhaps none did.

    A key counts for statements of its role alone.

    :raises Foreign: it is no statement in a form that is known here.
    :raises VerificationFailed: one of *trusted* is said to have signed it, and did not sign this.
    """
    try:
        if kind == PAYLOAD_TYPE:
            told = parse(data, where=where)
            return Opened(statement=told, signed=False, signers=(), envelope=None)
        envelope, _ = sigstore_bundle.unwrap(data, where=where)
        found = decode(envelope, where=where)
        if found.payload_type != PAYLOAD_TYPE:
            raise UnknownFormat(f"{where}: signed as {found.payload_type[:80]!r}, not as {PAYLOAD_TYPE}")
        told = parse(found.payload, where=where)
    except VerificationFailed as error:
        raise UnknownFormat(error.message, hint=error.hint) from None
    signers: tuple[str, ...] = ()
    if trusted:
        named = {keyid for keyid, _ in found.signatures} & {one.fingerprint for one in trusted}
        try:
            signers = verify(found, [one.key for one in trusted], where=where)
        except VerificationFailed:
            if named:  # a key of ours is said to have signed it, and did not sign this
                raise
    counted = {fingerprint(key) for key in keys_for(role_of(told.kind), trusted)}
    return Opened(
        statement=told,
        signed=True,
        signers=tuple(one for one in signers if one in counted),
        envelope=envelope,
        other_role=bool(signers) and counted.isdisjoint(signers),
    )
