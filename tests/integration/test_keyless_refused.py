"""`publish --keyless` with missing or faulty services: the message names them; no tag is set."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from sigstore.errors import VerificationError

from tests.keyless_scene import TRUST, Job, Prepared, a_job, a_prepared_publisher, job
from tests.reports import TAG
from tests.servers.sigstore_ca import SIGSTORE, new_key
from tests.servers.sigstore_server import CERT, IDENTITY, ISSUER, PROOFS, REQUEST_TOKEN, TIME, TOKEN
from torchkiln.attest import keyless
from torchkiln.attest.keyless import _text
from torchkiln.attest.keys import SignerIdentity
from torchkiln.errors import KilnError

__all__ = ["a_job", "a_prepared_publisher"]

REKOR = PROOFS[0]


def refused(scene: Job, code: int) -> KilnError:
    """The error of a publication; `Job.publish` checks that no secret is shown."""
    error = scene.publish().exception
    assert isinstance(error, KilnError), error
    assert (error.exit_code, scene.there.tags) == (code, []), error
    assert error.hint
    return error


@pytest.mark.parametrize("name", ["ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"])
def test_a_job_without_the_permission(scene: Job, name: str) -> None:
    scene.become(**{name: None})
    error = refused(scene, 2)

    assert f"{name} environment variable was unset" in error.message
    assert "id-token: write" in error.hint


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, REQUEST_TOKEN.encode(), "OIDC token request failed (code=500)"),
        (500, b"\xff\xfe", "can't decode"),
        (403, b'{"message": "eyJhbGciOi.eyJpc3Mi.c2ln"}', "OIDC token request failed (code=403)"),
        (200, b"<html>", "malformed or incomplete JSON"),
        (200, b'{"value": 5}', "malformed or incomplete JSON"),
        (200, b'{"value": "no token"}', "Malformed token"),
        (200, b'{"value": "eyJ9.eyJ9.eyJ9"}', "Malformed token"),
        (200, json.dumps({"value": REQUEST_TOKEN}).encode(), "Malformed token"),
    ],
)
def test_a_faulty_token_server(scene: Job, status: int, body: bytes, expected: str) -> None:
    scene.sigstore.behaviour.answers[TOKEN] = (status, body)

    assert expected in refused(scene, 8).message


def test_an_unreachable_token_server(scene: Job) -> None:
    scene.become(ACTIONS_ID_TOKEN_REQUEST_URL="http://127.0.0.1:9/token")

    assert "OIDC token request timed out" in refused(scene, 8).message


def test_an_expired_token(scene: Job) -> None:
    scene.sigstore.behaviour.life = -60
    error = refused(scene, 8)

    assert "(ExpiredSignatureError)" in error.message
    assert "clock" in error.hint


@pytest.mark.parametrize(
    ("place", "status", "body", "expected"),
    [
        (CERT, 500, b"{}", "500 Server Error"),
        (CERT, 400, b'{"code": 3, "message": "There was an error"}', "400 Client Error"),
        (CERT, 201, b"<html>", "Expecting value"),
        (CERT, 201, b"{}", "missing certificate chain"),
        (CERT, 201, b'{"signedCertificateEmbeddedSct": {"chain": {"certificates": ["", ""]}}}', "PEM"),
        (REKOR, 500, b"{}", "500"),
        (REKOR, 201, b"{}", ""),
        (REKOR, 201, b"<html>", "Expecting value"),
    ],
)
def test_a_faulty_service(scene: Job, place: str, status: int, body: bytes, expected: str) -> None:
    scene.sigstore.behaviour.answers[place] = (status, body)
    message = refused(scene, 8).message

    assert message.startswith("Sigstore: ")
    assert expected in message


def test_an_unreachable_service(scene: Job) -> None:
    file = scene.publisher.folder / "trust.json"
    file.write_text(file.read_text().replace(scene.sigstore.url, "http://127.0.0.1:9"))

    assert refused(scene, 8).message == f"Sigstore: http://127.0.0.1:9{CERT}: failed to connect"


@pytest.mark.parametrize("place", [TOKEN, CERT, REKOR])
def test_a_service_that_sends_one_byte_at_a_time(
    scene: Job, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyless, "_SECONDS", 2.0)
    scene.sigstore.behaviour.answers[place] = (200, b"")
    message = refused(scene, 8).message

    assert message.startswith("Sigstore: timed out: no complete response in 2 seconds from ")
    assert ("the token server of this job" if place == TOKEN else scene.sigstore.url) in message


def test_a_token_for_another_audience(scene: Job) -> None:
    """Fulcio checks the audience; torchkiln only passes the token on."""
    scene.sigstore.behaviour.claims["iss"] = "https://elsewhere.example"

    assert "400 Client Error" in refused(scene, 8).message


def test_a_fulcio_whose_certificates_are_in_another_log(scene: Job) -> None:
    """The trust file does not list that certificate log."""
    scene.sigstore.authority.ct_key = new_key()
    error = refused(scene, 12)

    assert "SCT verify failed" in error.message
    assert TRUST in error.hint


def test_without_timestamps_the_second_rekor_proves_no_time(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(prepared, monkeypatch, rekor=2) as scene:
        scene.sigstore.behaviour.answers[TIME] = (500, b"")

        assert "signed timestamp" in refused(scene, 8).message


def test_publication_is_completed_when_the_service_is_back(scene: Job) -> None:
    """The second run reuses the signatures of the first run."""
    real, count = scene.sigstore.log.add, 0

    def breaks(request: dict[str, object]) -> dict[str, object]:
        nonlocal count
        count += 1
        if count == 3:
            raise ValueError("full")
        return real(request)

    scene.sigstore.log.add = breaks  # type: ignore[method-assign]
    assert "full" in refused(scene, 8).message
    done = scene.publish()

    assert done.exit_code == 0, done.exception
    assert len(scene.sigstore.log.leaves) == 1 + len(scene.bundles())
    assert TAG in scene.there.tags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("{", "Invalid JSON"),
        ("{}", "Field required"),
        ('{"mediaType": "x", "trustedRoot": {}, "signingConfig": {}}', ""),
    ],
)
def test_an_invalid_trust_file(scene: Job, text: str | None, expected: str) -> None:
    file = scene.publisher.folder / "mine.json"
    if text is not None:
        file.write_text(text)
    scene.become(**{TRUST: str(file)})

    message = refused(scene, 2).message
    assert message.startswith(f"{TRUST}={file}: ")
    assert expected in message


def test_a_trust_file_of_a_later_version(scene: Job) -> None:
    """Each part of the file has a version."""
    file = scene.publisher.folder / "trust.json"
    file.write_text(file.read_text().replace("signingconfig.v0.2", "signingconfig.v9"))

    assert "signingconfig.v0.2+json'" in refused(scene, 2).message


def test_a_trust_file_with_unsupported_services(scene: Job) -> None:
    file = scene.publisher.folder / "trust.json"
    file.write_text(file.read_text().replace('"majorApiVersion": 1', '"majorApiVersion": 9'))

    assert "No valid Rekor transparency log" in refused(scene, 2).message


def test_the_public_sigstore_unreachable(scene: Job, tmp_path: Path) -> None:
    """Through a proxy that does not exist, because no test contacts the public Sigstore."""
    scene.become(
        **{TRUST: None, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        XDG_DATA_HOME=str(tmp_path / "data"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )

    assert refused(scene, 8).message.startswith("Sigstore: ")


def test_without_the_sigstore_library(scene: Job) -> None:
    scene.patch.setitem(sys.modules, "sigstore.oidc", None)
    error = refused(scene, 8)

    assert (error.message, error.hint) == (
        "keyless signing requires the package sigstore",
        "install it: pip install 'torchkiln[keyless]'",
    )


def test_the_message_of_an_error_or_of_its_cause() -> None:
    """If an error of Sigstore's libraries has no text, the text of its cause is shown."""
    cause = ValueError("certificate has expired\nmore")
    silent, speaking = RuntimeError(), RuntimeError("no entry in the log")
    silent.__cause__ = speaking.__cause__ = cause

    assert _text(silent) == "certificate has expired"
    assert _text(speaking) == "no entry in the log"
    assert _text(RuntimeError()) == "RuntimeError"


def certificate_for(names: list[x509.GeneralName], issuer: bytes) -> x509.Certificate:
    """A certificate with *names*, and Fulcio's extension for the *issuer*."""
    key, now = new_key(), datetime.now(timezone.utc)
    named = x509.Name([])
    builder = x509.CertificateBuilder(named, named, key.public_key(), 1, now, now)
    extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(f"{SIGSTORE}.1"), issuer)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return builder.add_extension(extension, critical=False).sign(key, SHA256())


def mail(text: str) -> x509.RFC822Name:
    return x509.RFC822Name._init_without_validation(text)


URI, MAIL = x509.UniformResourceIdentifier(IDENTITY), mail("kim@git.example")
USERNAME = x509.OtherName(x509.ObjectIdentifier(f"{SIGSTORE}.7"), b"\x0c\x03kim")
#: The names in a certificate, its issuer, and the only identity that it is of; "" if it is of none.
CERTIFICATES: dict[str, tuple[list[x509.GeneralName], str, str]] = {
    "URI": ([URI], ISSUER, IDENTITY),
    "email": ([MAIL], ISSUER, "kim@git.example"),
    "URI as an email": ([mail(IDENTITY)], ISSUER, ""),
    "email as a URI": ([x509.UniformResourceIdentifier("kim@git.example")], ISSUER, ""),
    "email as a user name": ([USERNAME], ISSUER, ""),
    "two names": ([URI, MAIL], ISSUER, ""),
    "one name twice": ([URI, URI], ISSUER, ""),
    "email in other case": ([mail("Kim@git.example")], ISSUER, "Kim@git.example"),
    "NUL": ([x509.UniformResourceIdentifier(f"{IDENTITY}\0x")], ISSUER, f"{IDENTITY}\0x"),
    "NUL before it": ([x509.UniformResourceIdentifier(f"\0{IDENTITY}")], ISSUER, f"\0{IDENTITY}"),
    "DNS": ([x509.DNSName("git.example")], ISSUER, ""),
    "issuer with a slash": ([URI], f"{ISSUER}/", ""),
    "issuer with NUL": ([URI], f"{ISSUER}\0", ""),
    "issuer in other case": ([URI], ISSUER.upper(), ""),
    "no issuer": ([URI], "", ""),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_only_the_identity_of_a_certificate_matches(name: str) -> None:
    """The name of the same kind, and no other in the certificate; the same bytes."""
    names, issuer, identity = CERTIFICATES[name]
    certificate = certificate_for(names, issuer.encode())
    asked = {
        IDENTITY,
        "kim@git.example",
        "kim",
        "\x0c\x03kim",
        "git.example",
        "",
        *(one.value for one in names),
    }
    found = set()
    for who in asked:
        signer = SignerIdentity(identity=str(who), issuer=ISSUER, roles=("publisher",))
        with suppress(VerificationError):
            keyless._Policy(signer).verify(certificate)
            found.add(who)
    assert found == ({identity} if identity else set())
