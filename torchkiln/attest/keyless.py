"""Statement → Sigstore bundle signed without a key of one's own: by the identity of the CI job that runs.

The job's OpenID token goes to Fulcio for a certificate of ten minutes, the signature into Rekor's public log.
All of it is `sigstore`'s own work; here stand only what is ours and the errors' words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import requests

from torchkiln.attest.signers import Signer, in_bundle
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE, certificate
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.errors import ConfigError, KilnError, ToolMissing, VerificationFailed
from torchkiln.oci.artifact import Artifact

if TYPE_CHECKING:
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken

TRUST = "TORCHKILN_SIGSTORE_TRUST"  # a file: another Sigstore than the public one
_NO_PERMISSION = "in GitHub Actions give the job `permissions: id-token: write`; elsewhere: --key KEY.pem"
# What a service answered may hold what it was sent: neither goes into a message.
_SECRETS = re.compile(r", body=.*(?=\))|eyJ[\w-]+\.[\w-]+\.[\w-]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Keyless:
    """The job that this process is part of."""

    signer: Signer

    @classmethod
    def of_this_job(cls) -> Keyless:
        """As the job's surroundings tell it.

        :raises ConfigError: they tell of no identity.
        :raises ToolMissing: `sigstore` is not installed, or the token's giver does not answer.
        """
        with _told():
            token = _token()
            return cls(Signer(identity=_identity(token), issuer=token.issuer))

    def seal(self, told: Statement) -> Artifact:
        """Signed anew, by a token of its own, and written into the log.

        GitHub's tokens live for five minutes, and what comes before may take an hour.
        """
        with _told():
            from sigstore import dsse
            from sigstore.sign import SigningContext

            context = SigningContext.from_trust_config(_trust())
            with context.signer(_token()) as signer:
                bundle = signer.sign_dsse(dsse.Statement(payload(told)))
        return in_bundle(bundle.to_json().encode(), told.kind)

    def sealed(self, told: Statement, artifact: bytes, kind: str) -> bool:
        """By the same job's identity."""
        if kind != BUNDLE_TYPE:
            return False
        try:
            return parse(verified(artifact, self.signer, where=""), where="") == told
        except VerificationFailed:
            return False


def verified(bundle: bytes, signer: Signer, *, where: str) -> bytes:
    """The statement in *bundle*, if *signer* signed it and the log has it.

    :raises VerificationFailed: they did not, or something in it was changed.
    :raises ToolMissing: `sigstore` is not installed, or knows no trust root.
    """
    with _told():
        from sigstore.models import Bundle
        from sigstore.verify import Verifier
        from sigstore.verify.policy import Identity

        verifier = Verifier(trusted_root=_trust().trusted_root)
        policy = Identity(identity=signer.identity, issuer=signer.issuer)
        try:
            kind, found = verifier.verify_dsse(Bundle.from_json(bundle), policy)
        except Exception as error:  # anybody may have written it: the library ends in errors of many kinds
            raise VerificationFailed(
                f"{where}: not signed by {signer.identity}: {_text(error)}",
                hint="do not use the image; ask who published it",
            ) from None
    if kind != PAYLOAD_TYPE:
        raise VerificationFailed(f"{where}: signed as {kind[:80]!r}, not as {PAYLOAD_TYPE}")
    return found


def names(bundle: bytes, signer: Signer, *, where: str) -> bool:
    """Whether the certificate in *bundle* is one of *signer*'s by what it says; nothing of it is proved.

    :raises ToolMissing: `sigstore` is not installed.
    """
    with _told():
        from cryptography.x509 import load_der_x509_certificate
        from sigstore.verify.policy import Identity

        policy = Identity(identity=signer.identity, issuer=signer.issuer)
        try:
            policy.verify(load_der_x509_certificate(certificate(bundle, where=where)))
        except Exception:  # as above
            return False
    return True


def _token() -> IdentityToken:
    """A new one of this job.

    :raises ConfigError: this is no job that has an identity.
    """
    from sigstore.oidc import IdentityToken, detect_credential

    if raw := detect_credential():
        return IdentityToken(raw)
    raise ConfigError("--keyless: this is not a CI job with an identity", hint=_NO_PERMISSION)


def _identity(token: IdentityToken) -> str:
    """As Fulcio will write it into certificates: of GitHub's jobs not the token's subject."""
    import jwt

    server = os.environ.get("GITHUB_SERVER_URL")
    workflow = jwt.decode(str(token), options={"verify_signature": False}).get("job_workflow_ref")
    return f"{server}/{workflow}" if server and workflow else token.identity


def _trust() -> ClientTrustConfig:
    """The public Sigstore, or the one that the user named.

    :raises ConfigError: the named file is none.
    """
    from sigstore.errors import Error as SigstoreError
    from sigstore.models import ClientTrustConfig

    chosen = os.environ.get(TRUST)
    if not chosen:
        return _public()
    try:
        found = ClientTrustConfig.from_json(Path(chosen).read_text(encoding="utf-8"))
        _ = found.trusted_root, found.signing_config  # are looked at when they are asked for
    except (OSError, ValueError, SigstoreError) as error:
        told = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{TRUST}={chosen}: {told}",
            hint="it names a ClientTrustConfig as JSON; unset it for the public Sigstore",
        ) from None
    return found


@cache
def _public() -> ClientTrustConfig:
    """Asked for once: its keys are looked up over the network."""
    from sigstore.models import ClientTrustConfig

    return ClientTrustConfig.production()


@contextmanager
def _told() -> Iterator[None]:
    """sigstore's errors in our words; the token stands in none of them."""
    try:
        from id import GitHubOidcPermissionCredentialError
        from sigstore.errors import VerificationError
        from sigstore.oidc import IdentityError
    except ImportError:
        raise ToolMissing(
            "signing without a key wants the package sigstore", hint="pip install 'torchkiln[keyless]'"
        ) from None
    try:
        yield
    except KilnError:
        raise
    except IdentityError as error:
        if isinstance(error.__cause__, GitHubOidcPermissionCredentialError):
            raise ConfigError(f"the job's identity: {_text(error)}", hint=_NO_PERMISSION) from None
        why = f" ({error.__cause__.__class__.__name__})" if error.__cause__ else ""
        raise ToolMissing(
            f"the job's identity: {_text(error)}{why}",
            hint="run the job again; a token that is expired when it comes: look at this machine's clock",
        ) from None
    except VerificationError as error:
        raise VerificationFailed(
            f"Sigstore: {_text(error)}", hint=f"the service is not the one that is trusted; see {TRUST}"
        ) from None
    except Exception as error:  # Fulcio's, Rekor's and the network's have no class in common
        raise ToolMissing(
            f"Sigstore: {_text(error)}",
            hint="look at the network; or sign with a key of your own: --key KEY.pem",
        ) from None


def _text(error: BaseException) -> str:
    """Its first line, or that of its cause where it has none; who is not there, by address."""
    while not str(error) and error.__cause__:
        error = error.__cause__
    if isinstance(error, requests.ConnectionError) and error.request is not None:
        return f"{error.request.url}: cannot be reached"
    lines = _SECRETS.sub("", str(error)).splitlines() or [type(error).__name__]
    return lines[0][:200]
