"""Turns statements into artifacts for a registry, signed or not, and reads them.

A signed statement is a Sigstore bundle as cosign's BUNDLE_SPEC defines it. An unsigned statement is attached
without a bundle, as BuildKit does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchkiln.attest import dsse, sigstore_bundle
from torchkiln.attest.dsse import PrivateKey, fingerprint
from torchkiln.attest.roles import KeyInRole, keys_for, role_of
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.errors import UnknownFormat, VerificationFailed
from torchkiln.model.report import SignedReport
from torchkiln.model.roles import ROLES, Role
from torchkiln.oci.artifact import Artifact

FORMS = (PAYLOAD_TYPE, BUNDLE_TYPE)  # media types of statements
LIMIT = 8 << 20  # maximum bytes of an artifact; an SBOM has about 1 MB, and up to 30 times that when parsed
KIND = "dev.sigstore.bundle.predicateType"  # cosign's annotation for the predicate type
_PLAIN_KIND = "in-toto.io/predicate-type"  # BuildKit's annotation for it


@dataclass(frozen=True, kw_only=True, slots=True)
class SignerIdentity:
    """The identity of a keyless signer, as Fulcio writes it into certificates."""

    identity: str  # "https://git.example/team/repo/.github/workflows/publish.yml@refs/heads/main"
    issuer: str  # "https://token.actions.githubusercontent.com"
    roles: tuple[Role, ...] = ROLES  # in which it is trusted


class Signer(Protocol):
    """Signs statements, or passes them on unsigned."""

    def sign(self, statement: Statement) -> Artifact:
        """Sign *statement*; return the artifact to attach to the image."""

    def matches(self, statement: Statement, artifact: bytes, kind: str) -> bool:
        """Whether *artifact*, of the media type *kind*, is *statement* as this signer signs it."""


@dataclass(frozen=True, slots=True)
class ByKey:
    """Signs with a key."""

    key: PrivateKey

    def sign(self, statement: Statement) -> Artifact:
        """Sign the statement."""
        envelope = dsse.sign(PAYLOAD_TYPE, payload(statement), self.key)
        return bundled(envelope, fingerprint(self.key.public_key()), statement.kind)

    def matches(self, statement: Statement, artifact: bytes, kind: str) -> bool:
        """Whether *artifact* is *statement*, signed by this key; the bytes of ECDSA signatures may differ."""
        try:
            found = opened(artifact, kind, [KeyInRole(key=self.key.public_key())], where="")
        except VerificationFailed:
            return False
        return found.statement == statement and bool(found.signers)


class Unsigned:
    """Passes statements on without a signature."""

    def sign(self, statement: Statement) -> Artifact:
        """The artifact with the unsigned statement."""
        return Artifact(
            kind=PAYLOAD_TYPE, data=payload(statement), annotations=((_PLAIN_KIND, statement.kind),)
        )

    def matches(self, statement: Statement, artifact: bytes, kind: str) -> bool:
        """Whether the bytes are the same."""
        return kind == PAYLOAD_TYPE and artifact == payload(statement)


def bundled(envelope: bytes, signer: str | None, kind: str) -> Artifact:
    """The artifact for *envelope*, a statement of *kind*; *signer*: the fingerprint of its key."""
    return in_bundle(sigstore_bundle.wrap(envelope, signer), kind)


def in_bundle(bundle: bytes, kind: str) -> Artifact:
    """The artifact for a Sigstore *bundle* with a statement of *kind*."""
    annotations = (("dev.sigstore.bundle.content", "dsse-envelope"), (KIND, kind))
    return Artifact(kind=BUNDLE_TYPE, data=bundle, annotations=annotations)


def of_signed_report(signed_report: SignedReport) -> Artifact | None:
    """The artifact for the envelope of *signed_report*; None: the report is not signed."""
    if signed_report.envelope is None:
        return None
    envelope = dsse.decode(signed_report.envelope, where=signed_report.name)
    kind = parse(envelope.payload, where=signed_report.name).kind
    signer = signed_report.signers[0] if signed_report.signers else None
    return bundled(signed_report.envelope, signer, kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedStatement:
    """A statement from a registry."""

    statement: Statement
    signed: bool
    signers: tuple[str, ...]  # fingerprints of trusted keys, trusted identities
    envelope: bytes | None
    other_role: bool = False  # a trusted key signed it, but the key's roles do not include this kind


def opened(data: bytes, kind: str, trusted: Sequence[KeyInRole], *, where: str) -> OpenedStatement:
    """The statement in the artifact *data* of media type *kind*, and the keys in *trusted* that signed it.

    A key is trusted only for statements of its roles.

    :raises UnknownFormat: it is not a statement in a supported format.
    :raises VerificationFailed: it names one of *trusted* as its signer, but the signature is invalid.
    """
    try:
        if kind == PAYLOAD_TYPE:
            statement = parse(data, where=where)
            return OpenedStatement(statement=statement, signed=False, signers=(), envelope=None)
        envelope, _ = sigstore_bundle.unwrap(data, where=where)
        found = dsse.decode(envelope, where=where)
        if found.payload_type != PAYLOAD_TYPE:
            raise UnknownFormat(f"{where}: payload type {found.payload_type[:80]!r}, not {PAYLOAD_TYPE}")
        statement = parse(found.payload, where=where)
    except VerificationFailed as error:
        raise UnknownFormat(error.message, hint=error.hint) from None
    signers: tuple[str, ...] = ()
    if trusted:
        named = {keyid for keyid, _ in found.signatures} & {key.fingerprint for key in trusted}
        try:
            signers = dsse.verify(found, [key.key for key in trusted], where=where)
        except VerificationFailed:
            if named:  # the envelope names a trusted key, but the signature is invalid
                raise
    counted = {fingerprint(key) for key in keys_for(role_of(statement.kind), trusted)}
    return OpenedStatement(
        statement=statement,
        signed=True,
        signers=tuple(signer for signer in signers if signer in counted),
        envelope=envelope,
        other_role=bool(signers) and counted.isdisjoint(signers),
    )
