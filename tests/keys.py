"""Fixed keys for tests of signatures."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

SECRET = "correct horse battery staple"
ED = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)
UNKNOWN_KEY = Ed25519PrivateKey.from_private_bytes(b"\x02" * 32)
P256 = ec.derive_private_key(12345, ec.SECP256R1())
KEYS = {"Ed25519": ED, "ECDSA P-256": P256}


def pem(key: Any, passphrase: str = "") -> bytes:
    """A private key as openssl writes it."""
    lock = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))


def public_pem(key: Any) -> bytes:
    """The public key of a private key, in PEM."""
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
