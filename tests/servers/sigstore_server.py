"""GitHub's token server, Fulcio, Rekor and a timestamp authority on one port of this machine.

They use the real protocols and checks; `trust` writes the file with which a client
trusts them, `job` is the environment of a job in GitHub Actions.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tests.servers.answering import QuietHandler
from tests.servers.background import InBackground
from tests.servers.sigstore_ca import HOST, Authority, Timestamper, spki
from tests.servers.sigstore_log import NAME, Log, b64

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "team/app/.github/workflows/publish.yml@refs/heads/main"
IDENTITY = f"{HOST}/{WORKFLOW}"
REQUEST_TOKEN = "request-token-not-for-any-log"
CLAIMS = {
    "iss": ISSUER,
    "sub": "repo:team/app:environment:release",
    "aud": "sigstore",
    "ref": "refs/heads/main",
    "sha": "1f" * 20,
    "repository": "team/app",
    "repository_id": "4711",
    "repository_owner": "team",
    "workflow": "publish",
    "event_name": "push",
    "job_workflow_ref": WORKFLOW,
    "runner_environment": "github-hosted",
}
#: path → (status, body): responses that replace the correct ones; without a body they take ten seconds
Answers = dict[str, tuple[int, bytes]]
TOKEN, CERT, TIME = "/token", "/api/v2/signingCert", "/api/v1/timestamp"
PROOFS = ("/api/v1/log/entries", "/api/v2/log/entries")


@functools.cache
def _issuer_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@dataclass
class Behaviour:
    """The claims in the job's tokens, and faults of the servers."""

    claims: dict[str, Any] = field(default_factory=lambda: dict(CLAIMS))
    life: int = 300  # lifetime of a token in seconds, as GitHub's
    answers: Answers = field(default_factory=dict)


class SigstoreServer(InBackground):
    """The servers; a context manager.

    :param version: Rekor's version, 1 or 2.
    """

    def __init__(self, version: int = 1) -> None:
        self.authority, self.log, self.behaviour = Authority(), Log(version), Behaviour()
        self.timestamper = Timestamper() if version == 2 else None
        self.requests: list[str] = []  # paths
        self.tokens: list[str] = []  # all issued tokens
        self.guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.timestamper:
            self.timestamper.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def job(self) -> dict[str, str]:
        """Variables of a job with `id-token: write`."""
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_SERVER_URL": HOST,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}{TOKEN}?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": REQUEST_TOKEN,
        }

    def token(self, audience: str) -> str:
        """A token like GitHub's."""
        now = int(time.time())
        times = {"iat": now + min(self.behaviour.life, 0) - 5, "exp": now + self.behaviour.life}
        claims = {**self.behaviour.claims, "aud": audience, "jti": str(len(self.tokens)), **times}
        self.tokens.append(jwt.encode(claims, _issuer_key(), algorithm="RS256", headers={"kid": "1"}))
        return self.tokens[-1]

    def certificate(self, bearer: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Fulcio's response.

        :raises jwt.PyJWTError, ValueError: invalid token, or no proof of possession of the key.
        """
        key = _issuer_key().public_key()
        claims = jwt.decode(bearer, key, algorithms=["RS256"], audience="sigstore", issuer=ISSUER)
        request = x509.load_pem_x509_csr(base64.b64decode(payload["certificateSigningRequest"]))
        public = request.public_key()
        if not request.is_signature_valid or not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("no proof of the key")
        return {
            "signedCertificateEmbeddedSct": {
                "chain": {"certificates": self.authority.certify(public, claims)}
            }
        }

    def trust(self, file: Path, **instead: Any) -> Path:
        """Write a ClientTrustConfig into *file*; *instead* replaces parts of its trusted root."""
        since = {"start": "2021-01-01T00:00:00Z"}
        service = {"url": self.url, "validFor": since, "operator": "sigstore.test"}
        signing = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [{**service, "majorApiVersion": 1}],
            "oidcUrls": [],
            "rekorTlogUrls": [{**service, "majorApiVersion": self.log.version}],
            "tsaUrls": [],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaConfig": {"selector": "ANY"},
        }
        stampers = []
        if self.timestamper:
            signing["tsaUrls"] = [{**service, "url": self.url + TIME, "majorApiVersion": 1}]
            stampers = [{**_authority(self.timestamper.chain, self.url), "validFor": since}]
        ct_key = spki(self.authority.ct_key)
        kind = "PKIX_ED25519" if self.log.version == 2 else "PKIX_ECDSA_P256_SHA_256"
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log(f"https://{NAME}", self.log.public, kind, self.log.id)],
            "certificateAuthorities": [{**_authority(self.authority.chain, self.url), "validFor": since}],
            "ctlogs": [_log(self.url, ct_key, "PKIX_ECDSA_P256_SHA_256", hashlib.sha256(ct_key).digest())],
            "timestampAuthorities": stampers,
        }
        config = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": root | instead,
            "signingConfig": signing,
        }
        file.write_text(json.dumps(config))
        return file


def _log(url: str, public: bytes, kind: str, name: bytes) -> dict[str, Any]:
    since = {"start": "2021-01-01T00:00:00Z"}
    key = {"rawBytes": b64(public), "keyDetails": kind, "validFor": since}
    return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": key, "logId": {"keyId": b64(name)}}


def _authority(chain: list[x509.Certificate], url: str) -> dict[str, Any]:
    certificates = [{"rawBytes": b64(item.public_bytes(Encoding.DER))} for item in chain]
    subject = {"organization": "sigstore.test", "commonName": "sigstore"}
    return {"subject": subject, "uri": url, "certChain": {"certificates": certificates}}


def _handler(server: SigstoreServer) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            with server.guard:
                server.requests.append(place.path)
                if self.instead(place.path):
                    return
                if self.headers.get("Authorization", "").lower() != f"bearer {REQUEST_TOKEN}":
                    self.answer(401, {}, b"{}")
                    return
                self.send_json(200, {"count": 1, "value": server.token(parse_qs(place.query)["audience"][0])})

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            with server.guard:
                server.requests.append(self.path)
                if self.instead(self.path):
                    return
                try:
                    self.serve(data)
                except Exception as error:
                    self.send_json(400, {"code": 3, "message": f"{type(error).__name__}: {error}"})

        def serve(self, data: bytes) -> None:
            if self.path == CERT:
                bearer = self.headers["Authorization"].removeprefix("Bearer ")
                self.send_json(201, server.certificate(bearer, json.loads(data)))
            elif self.path == PROOFS[server.log.version - 1]:
                self.send_json(201, server.log.add(json.loads(data)))
            elif self.path == TIME and server.timestamper:
                self.answer(201, {}, server.timestamper.stamp(data))
            else:
                self.answer(404, {}, b"{}")

        def instead(self, path: str) -> bool:
            """Send the replacement for *path*, if there is one; returns whether it was sent."""
            replacement = server.behaviour.answers.get(path)
            if replacement:
                slow = {"Content-Length": "99"} if not replacement[1] else {}
                self.answer(replacement[0], slow, replacement[1])
                for _ in range(99 if slow else 0):  # the body byte by byte
                    self.wfile.write(b" ")
                    time.sleep(0.1)
            return replacement is not None

        def send_json(self, status: int, document: Any) -> None:
            self.answer(status, {}, json.dumps(document).encode())

    return Handler
