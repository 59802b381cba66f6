"""Signs statements with Sigstore and the identity of the CI job, without a key (keyless signing).

For the job's OpenID token, Fulcio issues a certificate that is valid for ten minutes. Rekor's public log
records the signature. This module uses the package `sigstore`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import requests

from torchkiln.attest.dsse import BUNDLE_TYPE, artifact_annotations, certificate
from torchkiln.attest.keys import SignerIdentity
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.errors import ConfigError, KilnError, ToolMissing, VerificationFailed
from torchkiln.oci.image import Artifact

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle, ClientTrustConfig
    from sigstore.oidc import IdentityToken

T = TypeVar("T")
TRUST = "TORCHKILN_SIGSTORE_TRUST"  # variable: the path of the ClientTrustConfig of a private Sigstore
_SECONDS = 60.0  # for all requests of a signature, to be answered
_NO_PERMISSION = "in GitHub Actions add `permissions: id-token: write` to the job; elsewhere: --key KEY.pem"
_NETWORK = "check the network, or sign with a key: --key KEY.pem"
# A service's error may contain the request, with the token. Messages must contain neither.
_SECRETS = re.compile(r", body=.*(?=\))|eyJ[\w-]+\.[\w-]+\.[\w-]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Keyless:
    """Signs with the identity of the CI job in which this process runs."""

    signer: SignerIdentity

    @classmethod
    def of_this_job(cls) -> Keyless:
        """The signer for the CI job, whose identity is read from the environment.

        :raises ConfigError: this is not a CI job with an identity.
        :raises ToolMissing: `sigstore` is not installed, or the token service is not available.
        """
        with _translated_errors():
            token = _token()
            return cls(SignerIdentity(identity=_identity(token), issuer=token.issuer, roles=("publisher",)))

    def sign(self, statement: Statement) -> Artifact:
        """Sign *statement*, and record the signature in the log.

        Each call gets a new token: GitHub's tokens are valid for five minutes, and a push may take an hour.
        """
        with _translated_errors():
            from sigstore import dsse
            from sigstore.sign import SigningContext

            config, token = _trust(), _token()
            services = config.signing_config
            places = (services.get_fulcio(), *services.get_tlogs(), *services.get_tsas())

            def signed() -> Bundle:
                with SigningContext.from_trust_config(config).signer(token) as signer:
                    return signer.sign_dsse(dsse.Statement(payload(statement)))

            bundle = _in_time(signed, ", ".join(getattr(place, "url", "") for place in places))
        data = bundle.to_json().encode()
        return Artifact(kind=BUNDLE_TYPE, data=data, annotations=artifact_annotations(statement.kind))

    def matches(self, statement: Statement, data: bytes, kind: str) -> bool:
        """Whether *data* is *statement*, signed by the same identity."""
        if kind != BUNDLE_TYPE:
            return False
        try:
            found = verified(data, self.signer, where="")
            return found is not None and parse(found, where="") == statement
        except VerificationFailed:
            return False


def verified(bundle: bytes, signer: SignerIdentity, *, where: str) -> bytes | None:
    """The bytes of the statement that *signer* signed in *bundle*; None: its certificate names another.

    :raises VerificationFailed: the signature or the certificate is invalid, or the log does not have it.
    :raises ToolMissing: `sigstore` is not installed, or has no trust root.
    """
    with _translated_errors():
        from cryptography.x509 import load_der_x509_certificate
        from sigstore.models import Bundle
        from sigstore.verify import Verifier

        policy = _Policy(signer)
        try:
            policy.verify(load_der_x509_certificate(certificate(bundle, where=where)))
        except Exception:  # the library raises errors of many kinds
            return None
        verifier = Verifier(trusted_root=_trust().trusted_root)
        try:
            kind, found = verifier.verify_dsse(Bundle.from_json(bundle), policy)
        except Exception as error:  # of many kinds, too
            raise VerificationFailed(
                f"{where}: no valid signature of {signer.identity}: {_text(error)}",
                hint="do not use the image, and report it to its publisher",
            ) from None
    if kind != PAYLOAD_TYPE:
        raise VerificationFailed(f"{where}: payload type {kind[:80]!r}, not {PAYLOAD_TYPE}")
    return found


@dataclass(frozen=True, slots=True)
class _Policy:
    """The issuer and the only name in a certificate: the same bytes, as a URI or an email address.

    The library's `Identity` accepts any issuer for "", names of other kinds, and others beside the name.
    """

    signer: SignerIdentity

    def verify(self, cert: Certificate) -> None:
        """:raises VerificationError: *cert* is of another identity."""
        from cryptography.x509 import RFC822Name, SubjectAlternativeName, UniformResourceIdentifier
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import OIDCIssuer

        OIDCIssuer(self.signer.issuer).verify(cert)
        kind = UniformResourceIdentifier if "://" in self.signer.identity else RFC822Name
        names = cert.extensions.get_extension_for_class(SubjectAlternativeName).value
        if [(type(name), name.value) for name in names] != [(kind, self.signer.identity)]:
            raise VerificationError(f"the certificate is not of {self.signer.identity}")


def _token() -> IdentityToken:
    """A new token of this job."""
    from sigstore.oidc import IdentityToken, detect_credential

    if raw := _in_time(detect_credential, "the token server of this job"):
        return IdentityToken(raw)
    raise ConfigError(
        "--keyless requires a CI job with an OpenID identity: no credentials found", hint=_NO_PERMISSION
    )


def _identity(token: IdentityToken) -> str:
    """The identity that Fulcio writes into certificates: for GitHub the workflow, not the token's subject."""
    import jwt

    server = os.environ.get("GITHUB_SERVER_URL")
    workflow = jwt.decode(str(token), options={"verify_signature": False}).get("job_workflow_ref")
    return f"{server}/{workflow}" if server and workflow else token.identity


def _trust() -> ClientTrustConfig:
    """The configuration of the public Sigstore, or that in the file that $TORCHKILN_SIGSTORE_TRUST names."""
    from sigstore.errors import Error as SigstoreError
    from sigstore.models import ClientTrustConfig

    chosen = os.environ.get(TRUST)
    if not chosen:
        return _public()
    try:
        found = ClientTrustConfig.from_json(Path(chosen).read_text(encoding="utf-8"))
        _ = found.trusted_root, found.signing_config  # the library parses both when they are read
    except (OSError, ValueError, SigstoreError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{TRUST}={chosen}: {reason}",
            hint="set it to a ClientTrustConfig in JSON, or unset it to use the public Sigstore",
        ) from None
    return found


@cache
def _public() -> ClientTrustConfig:
    """The configuration of the public Sigstore; cached, because it is downloaded."""
    from sigstore.models import ClientTrustConfig

    return _in_time(ClientTrustConfig.production, "the server of the public Sigstore's keys")


def _in_time(step: Callable[[], T], servers: str) -> T:
    """The result of *step*, whose library waits for *servers* without a limit; a late step is left behind.

    :raises ToolMissing: it takes longer than `_SECONDS`.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(step())
        except Exception as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if not outcome.done():
        late = f"timed out: no complete response in {_SECONDS:g} seconds from {servers}"
        raise ToolMissing(f"Sigstore: {late}", hint=_NETWORK)
    return outcome.result()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turns sigstore's errors into a `KilnError` without the token."""
    try:
        from id import GitHubOidcPermissionCredentialError
        from sigstore.errors import VerificationError
        from sigstore.oidc import IdentityError
    except ImportError:
        raise ToolMissing(
            "keyless signing requires the package sigstore",
            hint="install it: pip install 'torchkiln[keyless]'",
        ) from None
    try:
        yield
    except KilnError:
        raise
    except IdentityError as error:
        if isinstance(error.__cause__, GitHubOidcPermissionCredentialError):
            raise ConfigError(
                f"cannot get the job's OpenID token: {_text(error)}", hint=_NO_PERMISSION
            ) from None
        why = f" ({error.__cause__.__class__.__name__})" if error.__cause__ else ""
        raise ToolMissing(
            f"cannot get the job's OpenID token: {_text(error)}{why}",
            hint="run the job again; if the token is expired, check the clock of this machine",
        ) from None
    except VerificationError as error:
        raise VerificationFailed(
            f"Sigstore: {_text(error)}",
            hint=f"the response is not from the trusted Sigstore; for a private Sigstore, set {TRUST} to its"
            " ClientTrustConfig",
        ) from None
    except Exception as error:  # errors of Fulcio, Rekor and the network have no common class
        raise ToolMissing(f"Sigstore: {_text(error)}", hint=_NETWORK) from None


def _text(error: BaseException) -> str:
    """The first line of the message of *error*, or of its cause; for a connection error, the URL."""
    while not str(error) and error.__cause__:
        error = error.__cause__
    if isinstance(error, requests.ConnectionError) and error.request is not None:
        return f"{error.request.url}: failed to connect"
    lines = _SECRETS.sub("", str(error)).splitlines() or [type(error).__name__]
    return lines[0][:200]
