"""A certificate for servers of tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_Key = ec.EllipticCurvePrivateKey
_DAY = datetime.timedelta(days=1)
_PEM = serialization.Encoding.PEM


def self_signed(path: Path) -> Path:
    """Write a self-signed certificate for 0.0.0.0, and its key, to *path*."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.BasicConstraints(ca=True, path_length=0)
    path.write_bytes(certificate("a server", key, "a server", key, own, _at("0.0.0.0")) + pem(key))
    return path


def with_authority(host: str, folder: Path) -> tuple[Path, Path]:
    """Write a CA's certificate, and the key and certificate that it signed for a server at *host*."""
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca, server, name = folder / "ca.pem", folder / "server.pem", "private archive's CA"
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    ca.write_bytes(certificate(name, authority, name, authority, is_ca))
    server.write_bytes(pem(own) + certificate(host, own, name, authority, _at(host)))
    return ca, server


def certificate(
    name: str, key: _Key, issuer: str, issuer_key: _Key, *extensions: x509.ExtensionType
) -> bytes:
    """A certificate of *name* and *key*, valid today."""
    names = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (issuer, name))
    now, number = datetime.datetime.now(datetime.timezone.utc), x509.random_serial_number()
    made = x509.CertificateBuilder(*names, key.public_key(), number, now - _DAY, now + _DAY)
    for extension in extensions:
        made = made.add_extension(extension, critical=True)
    return made.sign(issuer_key, hashes.SHA256()).public_bytes(_PEM)


def pem(key: _Key) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _at(host: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
