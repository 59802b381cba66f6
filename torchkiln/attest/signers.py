"""Turns statements into artifacts for a registry, signed or not, and opens those of trusted signers.

A signed statement is a Sigstore bundle as cosign's BUNDLE_SPEC defines it. An unsigned statement is attached
without a bundle, as BuildKit does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torchkiln.attest import dsse
from torchkiln.attest.dsse import BUNDLE_TYPE, PrivateKey, fingerprint
from torchkiln.attest.keys import KeyInRole, SignerIdentity, role_of
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.errors import UnknownFormat, VerificationFailed
from torchkiln.model.report import ROLES, Role, SignedReport
from torchkiln.oci.image import Artifact

FORMS = (PAYLOAD_TYPE, BUNDLE_TYPE)  # media types of statements
LIMIT = 8 << 20  # maximum bytes of an artifact; an SBOM has about 1 MB, and up to 30 times that when parsed
_PLAIN_KIND = "in-toto.io/predicate-type"  # BuildKit's annotation for it


class Signer(Protocol):
    """Signs statements, or passes them on unsigned."""

    def sign(self, statement: Statement) -> Artifact:
        """Sign *statement*; return the artifact to attach to the image."""

    def matches(self, statement: Statement, data: bytes, kind: str) -> bool:
        """Whether *data*, of the media type *kind*, is *statement* as this signer signs it."""


@dataclass(frozen=True, slots=True)
class ByKey:
    key: PrivateKey

    def sign(self, statement: Statement) -> Artifact:
        envelope = dsse.sign(PAYLOAD_TYPE, payload(statement), self.key)
        return bundled(envelope, fingerprint(self.key.public_key()), statement.kind)

    def matches(self, statement: Statement, data: bytes, kind: str) -> bool:
        """Whether *data* is *statement*, signed by this key; the bytes of ECDSA signatures may differ."""
        try:
            own = KeyInRole(key=self.key.public_key(), roles=ROLES["any"])
            found = Trust(keys=(own,)).open(data, kind, where="")
        except VerificationFailed:
            return False
        return found.statement == statement and bool(found.signers)


class Unsigned:
    def sign(self, statement: Statement) -> Artifact:
        return Artifact(
            kind=PAYLOAD_TYPE, data=payload(statement), annotations=((_PLAIN_KIND, statement.kind),)
        )

    def matches(self, statement: Statement, data: bytes, kind: str) -> bool:
        """Whether the bytes are the same."""
        return kind == PAYLOAD_TYPE and data == payload(statement)


def bundled(envelope: bytes, signer: str | None, kind: str) -> Artifact:
    """The artifact for *envelope*, a statement of *kind*; *signer*: the fingerprint of its key."""
    data = dsse.wrap(envelope, signer)
    return Artifact(kind=BUNDLE_TYPE, data=data, annotations=dsse.artifact_annotations(kind))


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    keys: tuple[KeyInRole, ...] = ()
    signer: SignerIdentity | None = None

    @property
    def verifies(self) -> bool:
        """Whether there is a key or a signer; otherwise signatures are not verified."""
        return bool(self.keys or self.signer)

    def open(self, data: bytes, kind: str, *, where: str) -> OpenedStatement:
        """The statement in the artifact *data* of media type *kind*, and who of the trusted signed it.

        A key or an identity is trusted only for statements of its roles.

        :raises UnknownFormat: it is not a statement in a supported format.
        :raises VerificationFailed: it names a trusted signer, but the signature is invalid.
        """
        try:
            if kind == PAYLOAD_TYPE:
                statement = parse(data, where=where)
                return OpenedStatement(statement=statement, signed=False, signers=(), envelope=None)
            envelope, keyless = dsse.unwrap(data, where=where)
            found = dsse.decode(envelope, where=where)
            if found.payload_type != PAYLOAD_TYPE:
                raise UnknownFormat(f"{where}: payload type {found.payload_type[:80]!r}, not {PAYLOAD_TYPE}")
            statement = parse(found.payload, where=where)
        except VerificationFailed as error:
            raise UnknownFormat(error.message, hint=error.hint) from None
        signers = self._keys_of(found, where)
        if keyless and self.signer:
            from torchkiln.attest.keyless import verified

            if signed := verified(data, self.signer, where=where):
                statement, signers = parse(signed, where=where), {self.signer.identity: {*self.signer.roles}}
        role = role_of(statement.kind)
        counted = tuple(signer for signer, roles in signers.items() if role in roles)
        return OpenedStatement(
            statement=statement,
            signed=True,
            signers=counted,
            envelope=envelope,
            other_role=bool(signers) and not counted,
        )

    def _keys_of(self, envelope: dsse.Envelope, where: str) -> dict[str, set[Role]]:
        """The fingerprints of the trusted keys that signed *envelope*, with their roles."""
        roles: dict[str, set[Role]] = {}
        for key in self.keys:
            roles.setdefault(key.fingerprint, set()).update(key.roles)
        try:
            signers = dsse.verify(envelope, [key.key for key in self.keys], where=where)
        except VerificationFailed:
            if any(keyid in roles for keyid, _ in envelope.signatures):  # it names a trusted key
                raise
            return {}
        return {signer: roles[signer] for signer in signers}


def with_signer(trust: Trust, signer: Signer) -> Trust:
    """*trust* with *signer* as a publisher: a publisher trusts its own earlier statements."""
    if isinstance(signer, ByKey):
        own = KeyInRole(key=signer.key.public_key(), roles=("publisher",))
        return replace(trust, keys=(*trust.keys, own))
    job = getattr(signer, "signer", None)  # of `Keyless`; not imported: sigstore may be missing
    if trust.signer is None and isinstance(job, SignerIdentity):
        return replace(trust, signer=job)
    return trust
