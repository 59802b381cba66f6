"""Statement → Sigstore bundle signed without a key of one's own: by the identity of the CI job that runs.

The job's OpenID token goes to Fulcio for a certificate of ten minutes, the signature into Rekor's public log.
All of it is `sigstore`'s own work; here stand only what is ours and the errors' words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import ConfigError, ToolMissing, VerificationFailed
from torchkiln.oci.artifact import Artifact
from torchkiln.publishing.sealing import Signer, in_bundle
from torchkiln.statements.sigstore_bundle import BUNDLE_TYPE
from torchkiln.statements.statement import Statement, payload

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken

TRUST = "TORCHKILN_SIGSTORE_TRUST"  # a file: another Sigstore than the public one


@dataclass(frozen=True, slots=True)
class Keyless:
    """The job that this process is part of."""

    token: IdentityToken = field(repr=False)

    @classmethod
    def of_this_job(cls) -> Keyless:
        """As the job's surroundings tell it.

        :raises ConfigError: they tell of no identity.
        :raises ToolMissing: `sigstore` is not installed, or the token's giver does not answer.
        """
        with _told():
            from sigstore.oidc import IdentityToken, detect_credential

            raw = detect_credential()
            if raw:
                return cls(IdentityToken(raw))
        raise ConfigError(
            "--keyless signs as the CI job that runs, and this is none that has an identity",
            hint="in GitHub Actions give the job `permissions: id-token: write`; elsewhere: --key KEY.pem",
        )

    def seal(self, told: Statement) -> Artifact:
        """Signed anew, and written into the log."""
        with _told():
            from sigstore import dsse
            from sigstore.sign import SigningContext

            context = SigningContext.from_trust_config(_trust())
            with context.signer(self.token) as signer:
                bundle = signer.sign_dsse(dsse.Statement(payload(told)))
        return in_bundle(bundle.to_json().encode(), told.kind)

    def sealed(self, told: Statement, artifact: bytes, kind: str) -> bool:
        """By the same job's identity."""
        if kind != BUNDLE_TYPE:
            return False
        signer = Signer(identity=self.token.identity, issuer=self.token.issuer)
        try:
            return verified(artifact, signer, where="") == payload(told)
        except VerificationFailed:
            return False


def verified(bundle: bytes, signer: Signer, *, where: str) -> bytes:
    """The statement in *bundle*, if *signer* signed it and the log has it.

    :raises VerificationFailed: they did not, or something in it was changed.
    :raises ToolMissing: `sigstore` is not installed, or knows no trust root.
    """
    with _told():
        from sigstore.errors import Error as SigstoreError
        from sigstore.errors import VerificationError
        from sigstore.models import Bundle, InvalidBundle
        from sigstore.verify import Verifier
        from sigstore.verify.policy import Identity

        verifier = Verifier(trusted_root=_trust().trusted_root)
        policy = Identity(identity=signer.identity, issuer=signer.issuer)
        try:
            _, found = verifier.verify_dsse(Bundle.from_json(bundle), policy)
        except (VerificationError, InvalidBundle, SigstoreError) as error:
            raise VerificationFailed(
                f"{where}: not signed by {signer.identity}: {str(error).splitlines()[0][:200]}",
                hint="do not use the image; ask who published it",
            ) from None
    return found


def _trust() -> ClientTrustConfig:
    """The public Sigstore, or the one that the user named.

    :raises ConfigError: the named file is none.
    """
    from sigstore.models import ClientTrustConfig

    chosen = os.environ.get(TRUST)
    if not chosen:
        return ClientTrustConfig.production()
    try:
        return ClientTrustConfig.from_json(Path(chosen).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{TRUST}={chosen}: {str(error).splitlines()[0][:200]}") from None


@contextmanager
def _told() -> Iterator[None]:
    """sigstore's errors in our words; the token stands in none of them."""
    try:
        from sigstore.errors import Error as SigstoreError
        from sigstore.oidc import IdentityError
    except ImportError:
        raise ToolMissing(
            "signing without a key wants the package sigstore", hint="pip install 'torchkiln[keyless]'"
        ) from None
    try:
        yield
    except IdentityError as error:
        raise ConfigError(
            f"the job's identity: {str(error).splitlines()[0][:200]}", hint="look at the job's permissions"
        ) from None
    except (SigstoreError, OSError) as error:
        raise ToolMissing(
            f"Sigstore: {(str(error).splitlines() or [''])[0][:200]}",
            hint="look at the network; or sign with a key of your own: --key KEY.pem",
        ) from None
