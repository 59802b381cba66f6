"""A timestamp authority (RFC 3161), whose answers `openssl ts` makes."""

from __future__ import annotations

import subprocess
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
    """With a root of its own."""

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
        """The answer to *query*."""
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
