"""Whom somebody trusts → what counts of that which goes with an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchkiln.attest import sigstore_bundle
from torchkiln.attest.roles import KeyInRole, role_of
from torchkiln.attest.signers import ByKey, Opened, Sealer, Signer, opened
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE
from torchkiln.attest.statement import parse
from torchkiln.errors import VerificationFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Whom somebody trusts who looks: keys, and a job that signs without one."""

    keys: tuple[KeyInRole, ...] = ()
    signer: Signer | None = None

    @property
    def looks(self) -> bool:
        """Whether anybody: else signatures are not looked at."""
        return bool(self.keys or self.signer)

    def open(self, data: bytes, kind: str, *, where: str) -> Opened:
        """`opened`; a bundle without a key, by Sigstore's rules.

        :raises Foreign: it is no statement in a form that is known here.
        :raises VerificationFailed: its signature does not fit.
        """
        found = opened(data, kind, self.keys, where=where)
        if not (self.signer and kind == BUNDLE_TYPE and sigstore_bundle.unwrap(data, where=where)[1]):
            return found
        from torchkiln.attest.keyless import names, verified

        try:
            said = verified(data, self.signer, where=where)
        except VerificationFailed:
            if names(data, self.signer, where=where):  # the job is said to have signed it, and did not
                raise
            return found
        statement = parse(said, where=where)
        if role_of(statement.kind) not in self.signer.roles:
            return replace(found, statement=statement, signers=(), other_role=True)
        return replace(found, statement=statement, signers=(self.signer.identity,), other_role=False)


def with_sealer(trust: Trust, sealer: Sealer) -> Trust:
    """*trust*, and as a publisher whoever seals: who signs with a key believes what it signed before."""
    if isinstance(sealer, ByKey):
        own = KeyInRole(key=sealer.key.public_key(), roles=("publisher",))
        return replace(trust, keys=(*trust.keys, own))
    job = getattr(sealer, "signer", None)  # of `Keyless`, whose package may not be installed
    if trust.signer is None and isinstance(job, Signer):
        return replace(trust, signer=replace(job, roles=("publisher",)))
    return trust
