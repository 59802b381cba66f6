"""A local certificate authority like Fulcio's, and a local timestamp authority (RFC 3161)."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

SIGSTORE = "1.3.6.1.4.1.57264.1"
SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
#: Fulcio's table: the last number of an extension's OID → the claim of GitHub's token. Extensions up to 6 are
#: plain text, those from 8 on DER.
PLAIN = {1: "iss", 2: "event_name", 3: "sha", 4: "workflow", 5: "repository", 6: "ref"}
CODED = {8: "iss", 11: "runner_environment", 13: "sha", 14: "ref", 15: "repository_id", 20: "event_name"}
HOST = "https://git.example"

Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key: Key | ec.EllipticCurvePublicKey) -> bytes:
    """The public key, as DER."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def utf8(text: str) -> bytes:
    """A DER UTF8String."""
    data = text.encode()
    size = bytes([len(data)]) if len(data) < 128 else bytes([0x81, len(data)])
    return b"\x0c" + size + data


def octets(data: bytes) -> bytes:
    """A DER OCTET STRING of less than 256 bytes."""
    return b"\x04" + (bytes([len(data)]) if len(data) < 128 else bytes([0x81, len(data)])) + data


class Authority:
    """A root certificate, an intermediate certificate that signs, and a certificate transparency log."""

    def __init__(self) -> None:
        self.root_key, self.key, self.ct_key = new_key(), new_key(), new_key()
        self.life = timedelta(minutes=10)
        self.root = self._above("sigstore", self.root_key, "sigstore", self.root_key, path=1)
        self.between = self._above("sigstore-intermediate", self.key, "sigstore", self.root_key, path=0)

    @property
    def chain(self) -> list[x509.Certificate]:
        return [self.between, self.root]

    def certify(self, key: ec.EllipticCurvePublicKey, claims: Mapping[str, str]) -> list[str]:
        """A certificate for the job of *claims*, and its chain, in PEM."""
        builder = self._leaf(key, claims)
        draft = builder.sign(self.key, SHA256())  # the log signs the certificate without the log's timestamp
        stamp = x509.UnrecognizedExtension(SCT_LIST, octets(self._timestamps(draft.tbs_certificate_bytes)))
        leaf = builder.add_extension(stamp, critical=False).sign(self.key, SHA256())
        return [item.public_bytes(Encoding.PEM).decode() for item in (leaf, *self.chain)]

    def _above(self, name: str, key: Key, by: str, signer: Key, *, path: int) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        usage = dict.fromkeys(
            (
                "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
                "key_agreement", "encipher_only", "decipher_only",
            ),
            False,
        )  # fmt: skip
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(by))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.BasicConstraints(ca=True, path_length=path), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
            .sign(signer, SHA256())
        )

    def _leaf(self, key: ec.EllipticCurvePublicKey, claims: Mapping[str, str]) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc).replace(microsecond=0)
        job = f"{HOST}/{claims['job_workflow_ref']}"
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.between.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + self.life)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(job)]), critical=True)
        )
        values_by_number = {number: claims[name].encode() for number, name in PLAIN.items()}
        values_by_number |= {number: utf8(claims[name]) for number, name in CODED.items()}
        values_by_number |= {9: utf8(job), 12: utf8(f"{HOST}/{claims['repository']}")}
        for number, value in sorted(values_by_number.items()):
            one = x509.UnrecognizedExtension(ObjectIdentifier(f"{SIGSTORE}.{number}"), value)
            builder = builder.add_extension(one, critical=False)
        return builder

    def _timestamps(self, draft: bytes) -> bytes:
        """RFC 6962's list with one timestamp of *draft*, a certificate's inner part."""
        now = int(datetime.now(timezone.utc).timestamp() * 1000)
        entry = hashlib.sha256(spki(self.key)).digest() + len(draft).to_bytes(3, "big") + draft
        signed = self.ct_key.sign(struct.pack("!BBQH", 0, 0, now, 1) + entry + b"\0\0", ec.ECDSA(SHA256()))
        log = hashlib.sha256(spki(self.ct_key)).digest()
        one = struct.pack("!B32sQHBBH", 0, log, now, 0, 4, 3, len(signed)) + signed
        return struct.pack("!HH", len(one) + 2, len(one)) + one


def _named(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "sigstore.test"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


_SETTINGS = """[tsa]
default_tsa = here
[here]
serial = {folder}/serial
signer_cert = {folder}/stamp.pem
signer_key = {folder}/stamp.key
signer_digest = sha256
default_policy = 1.3.6.1.4.1.57264.2
digests = sha256, sha384, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
"""


class Timestamper:
    """A timestamp authority with its own root."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="timestamper-")
        self.folder = Path(self._temporary.name)
        root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root = _certificate("timestamps", root_key, "timestamps", root_key, above=True)
        self.chain = [_certificate("a timestamp", key, "timestamps", root_key, above=False), root]
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / "stamp.key").write_bytes(key.private_bytes(*form))
        (self.folder / "stamp.pem").write_bytes(self.chain[0].public_bytes(Encoding.PEM))
        (self.folder / "serial").write_text("01")
        (self.folder / "settings").write_text(_SETTINGS.format(folder=self.folder))

    def close(self) -> None:
        self._temporary.cleanup()

    def stamp(self, query: bytes) -> bytes:
        """The response to *query*."""
        (self.folder / "query").write_bytes(query)
        line = ["openssl", "ts", "-reply", "-config", "settings", "-queryfile", "query", "-out", "answer"]
        subprocess.run(line, cwd=self.folder, check=True, capture_output=True)
        return (self.folder / "answer").read_bytes()


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, by: str, signer: ec.EllipticCurvePrivateKey, *, above: bool
) -> x509.Certificate:
    now = datetime.now(timezone.utc)
    usage = x509.KeyUsage(not above, False, False, False, False, above, above, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=above, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if not above:
        stamping = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        builder = builder.add_extension(stamping, critical=True)
    return builder.sign(signer, SHA256())
