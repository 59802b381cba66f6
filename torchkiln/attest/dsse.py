"""Bytes, key -> DSSE envelope, and back to bytes only if a trusted key signed them.

DSSE 1.0: what is signed is the pre-authentication encoding of type and payload, so that no payload can be
passed off as another type's. A keyid is a hint for people here, and never decides. Keys are PEM files:
Ed25519, or ECDSA on P-256 with SHA-256 and signatures in DER, as OpenSSL and cosign write them. Neither a key
nor a pass phrase gets into a message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.util.files import pretty_json
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey

PASSPHRASE = "TORCHKILN_KEY_PASSPHRASE"  # the environment variable that the command line reads
_WANTED = "use Ed25519 or ECDSA on P-256 (docs/gate.md has the openssl commands)"
_ENVELOPE: dict[str, Any] = {
    "type": "object",
    "required": ["payload", "payloadType", "signatures"],
    "properties": {
        "payload": {"type": "string"},
        "payloadType": {"type": "string"},
        "signatures": {
            "type": "array",
            "minItems": 1,
            "maxItems": 16,
            "items": {
                "type": "object",
                "required": ["sig"],
                "properties": {"sig": {"type": "string"}, "keyid": {"type": "string"}},
            },
        },
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """What an envelope holds, as it was decoded: nothing of it is proved yet."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # (keyid or "", signature)


def pae(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed; lengths count bytes.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal(payload_type: str, payload: bytes, key: PrivateKey) -> bytes:
    """An envelope, as a file, with one signature."""
    signed = pae(payload_type, payload)
    signature = (
        key.sign(signed) if isinstance(key, Ed25519PrivateKey) else key.sign(signed, ec.ECDSA(SHA256()))
    )
    return pretty_json(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [
                {"keyid": fingerprint(key.public_key()), "sig": base64.b64encode(signature).decode()}
            ],
        }
    )


def decode(data: bytes, *, where: str) -> Envelope:
    """The envelope in the file *where* with the bytes *data*.

    :raises VerificationFailed: it is none.
    """
    hint = "a signed report is what `smoke --report FILE --key KEY` writes beside it"
    try:
        told = json_of(data)
        if wrong := sentences(told, _ENVELOPE, where):
            raise VerificationFailed("\n".join(wrong), hint=hint)
        return Envelope(
            payload_type=told["payloadType"],
            payload=_bytes(told["payload"]),
            signatures=tuple((one.get("keyid", ""), _bytes(one["sig"])) for one in told["signatures"]),
        )
    except ValueError as error:
        raise VerificationFailed(f"{where}: no signed envelope: {error}", hint=hint) from None


def verify(envelope: Envelope, trusted: Sequence[PublicKey], *, where: str) -> tuple[str, ...]:
    """The fingerprints of those *trusted* keys that signed it, one at least; other signatures do not matter.

    :raises VerificationFailed: none did.
    """
    signed = pae(envelope.payload_type, envelope.payload)
    good = [
        fingerprint(key)
        for key in trusted
        if any(_is_good(key, signature, signed) for _, signature in envelope.signatures)
    ]
    if good:
        return tuple(dict.fromkeys(good))
    names = [keyid[:80] for keyid, _ in envelope.signatures if keyid]
    known = sorted({fingerprint(key) for key in trusted})
    if altered := [name for name in names if name in known]:
        raise VerificationFailed(
            f"{where}: the signature of {altered[0]} does not fit: something in the file was changed",
            hint="get the file again from where it was made; do not use this one",
        )
    count = "its signature is not" if len(envelope.signatures) == 1 else "no signature on it is"
    said = f" (it says: {', '.join(names)})" if names else ""
    raise VerificationFailed(
        f"{where}: {count} by a trusted key{said}", hint=f"trusted: {', '.join(known) or 'none'}"
    )


def fingerprint(key: PublicKey) -> str:
    """SHA-256 of its SubjectPublicKeyInfo, hex: `openssl pkey -pubin -outform DER | sha256sum`."""
    form = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(form).hexdigest()


def private_key(pem: bytes, passphrase: str | None, *, where: str) -> PrivateKey:
    """The key in the PEM file *where*.

    :raises ConfigError: it is none that can sign here; says why, and nothing of what is in the file.
    """
    try:
        key = load_pem_private_key(pem, passphrase.encode() if passphrase else None)
    except TypeError:  # how the library says that one of the two is there without the other
        told = (
            f"it has no pass phrase, and {PASSPHRASE} is set: unset it, or encrypt the key"
            if passphrase
            else f"it is encrypted: put the pass phrase into {PASSPHRASE}"
        )
        raise ConfigError(f"{where}: {told}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where}: {_no_private_key(pem, passphrase)}", hint=_WANTED) from None
    if isinstance(key, Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ConfigError(f"{where}: a key of another kind ({_kind(key)})", hint=_WANTED)


def public_key(pem: bytes, *, where: str) -> PublicKey:
    """The key in the PEM file *where*.

    :raises ConfigError: it is none that can be trusted here, or a private one.
    """
    if b"PRIVATE KEY-----" in pem:
        raise ConfigError(
            f"{where}: a private key; --trust takes the public one",
            hint="run: openssl pkey -in KEY.pem -pubout -out PUBLIC.pem",
        )
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where}: no public key in PEM form", hint=_WANTED) from None
    if isinstance(key, Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ConfigError(f"{where}: a key of another kind ({_kind(key)})", hint=_WANTED)


def _is_good(key: PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            key.verify(signature, signed, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _bytes(text: str) -> bytes:
    """Base64, of either alphabet, as DSSE demands of those who verify.

    :raises ValueError: it is not.
    """
    try:
        return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("what should be base64 is not") from None


def _no_private_key(pem: bytes, passphrase: str | None) -> str:
    if b"OPENSSH PRIVATE KEY" in pem:
        return "an SSH key; signing takes one that openssl wrote"
    if b"PUBLIC KEY-----" in pem:
        return "a public key; --key takes the private one"
    if passphrase:
        return f"no private key in PEM form, or not the pass phrase of {PASSPHRASE}"
    return "no private key in PEM form"


def _kind(key: object) -> str:
    if isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        return f"ECDSA on {key.curve.name}"
    return type(key).__name__.strip("_").removesuffix("PrivateKey").removesuffix("PublicKey")
