"""Defines the keys and the identity that a user trusts, and opens the statements that they signed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchkiln.attest import sigstore_bundle
from torchkiln.attest.roles import KeyInRole, role_of
from torchkiln.attest.signers import ByKey, OpenedStatement, Signer, SignerIdentity, opened
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE
from torchkiln.attest.statement import parse
from torchkiln.errors import VerificationFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """The trusted keys, and the trusted keyless signer."""

    keys: tuple[KeyInRole, ...] = ()
    signer: SignerIdentity | None = None

    @property
    def verifies(self) -> bool:
        """Whether there is a key or a signer; otherwise signatures are not verified."""
        return bool(self.keys or self.signer)

    def open(self, data: bytes, kind: str, *, where: str) -> OpenedStatement:
        """Like `opened`, and verifies keyless signatures, too.

        :raises UnknownFormat: it is not a statement in a supported format.
        :raises VerificationFailed: its signature is invalid.
        """
        found = opened(data, kind, self.keys, where=where)
        if not (self.signer and kind == BUNDLE_TYPE and sigstore_bundle.unwrap(data, where=where)[1]):
            return found
        from torchkiln.attest.keyless import names, verified

        try:
            verified_payload = verified(data, self.signer, where=where)
        except VerificationFailed:
            if names(data, self.signer, where=where):  # names the trusted job, but is invalid
                raise
            return found
        statement = parse(verified_payload, where=where)
        if role_of(statement.kind) not in self.signer.roles:
            return replace(found, statement=statement, signers=(), other_role=True)
        return replace(found, statement=statement, signers=(self.signer.identity,), other_role=False)


def with_signer(trust: Trust, signer: Signer) -> Trust:
    """*trust* with *signer* as a publisher: a publisher trusts its own earlier statements."""
    if isinstance(signer, ByKey):
        own = KeyInRole(key=signer.key.public_key(), roles=("publisher",))
        return replace(trust, keys=(*trust.keys, own))
    job = getattr(signer, "signer", None)  # of `Keyless`; not imported: sigstore may be missing
    if trust.signer is None and isinstance(job, SignerIdentity):
        return replace(trust, signer=replace(job, roles=("publisher",)))
    return trust
