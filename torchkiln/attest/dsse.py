"""Signs and verifies DSSE envelopes, and wraps them in Sigstore bundles (version 0.3, as cosign does).

DSSE 1.0 signs the pre-authentication encoding of type and payload, so that a signed payload is not valid as
another type. Key IDs, and a bundle's hint of a key, appear only in messages; verification ignores them. Keys
are PEM files: Ed25519, or ECDSA on P-256 with SHA-256 and DER signatures, as OpenSSL and cosign write them.
Messages contain neither keys nor passphrases.

After keyless signing (`keyless`), a bundle has a certificate and log entries instead of the hint.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
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
from torchkiln.util.schema import TEXT, list_of, mapping, sentences
from torchkiln.util.strict_json import json_of

PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey

PASSPHRASE = "TORCHKILN_KEY_PASSPHRASE"  # environment variable with the key's passphrase
_SUPPORTED = "use an Ed25519 or ECDSA P-256 key (docs/gate.md has the openssl commands)"
_SIGNATURE = mapping({"sig": TEXT}, keyid=TEXT)
_ENVELOPE = mapping(
    {"payload": TEXT, "payloadType": TEXT, "signatures": list_of(_SIGNATURE, minItems=1, maxItems=16)}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A decoded envelope; its signatures are not verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # (keyid or "", signature)


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding: the bytes that are signed. Its lengths are in bytes.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, key: PrivateKey) -> bytes:
    """The envelope with one signature, as the bytes of a file."""
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
    """The envelope in *data*, the bytes of the file *where*.

    :raises VerificationFailed: *data* is not an envelope.
    """
    hint = "`torchkiln smoke TAG --report FILE --key KEY` writes a signed report"
    try:
        document = json_of(data)
        if wrong := sentences(document, _ENVELOPE, where):
            raise VerificationFailed("\n".join(wrong), hint=hint)
        return Envelope(
            payload_type=document["payloadType"],
            payload=_bytes(document["payload"]),
            signatures=tuple(
                (signature.get("keyid", ""), _bytes(signature["sig"])) for signature in document["signatures"]
            ),
        )
    except ValueError as error:
        raise VerificationFailed(f"{where}: not a DSSE envelope: {error}", hint=hint) from None


def verify(envelope: Envelope, trusted: Sequence[PublicKey], *, where: str) -> tuple[str, ...]:
    """The fingerprints of the *trusted* keys that signed *envelope*, at least one.

    Other signatures are ignored.

    :raises VerificationFailed: no trusted key signed it.
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
            f"{where}: invalid signature of key {altered[0]}: the file was changed after it was signed",
            hint="get the file again from its source; do not use this one",
        )
    signers = f" (key IDs: {', '.join(names)})" if names else ""
    raise VerificationFailed(
        f"{where}: no signature by a trusted key{signers}",
        hint=f"pass the signer's public key if you trust it; trusted: {', '.join(known) or 'none'}",
    )


def fingerprint(key: PublicKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo in hex: `openssl pkey -pubin -outform DER | sha256sum`."""
    form = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(form).hexdigest()


def private_key(pem: bytes, passphrase: str | None, *, where: str) -> PrivateKey:
    """The key in *pem*, the bytes of the file *where*.

    :raises ConfigError: it is not a supported private key; the message contains no part of the key.
    """
    try:
        key = load_pem_private_key(pem, passphrase.encode() if passphrase else None)
    except TypeError:  # an encrypted key without a passphrase, or a passphrase for a key without encryption
        problem = (
            f"the key has no passphrase, and {PASSPHRASE} is set: unset it, or encrypt the key"
            if passphrase
            else f"the key is encrypted: set {PASSPHRASE} to its passphrase"
        )
        raise ConfigError(f"{where}: {problem}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where}: {_why_not_private(pem, passphrase)}", hint=_SUPPORTED) from None
    if isinstance(key, Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ConfigError(f"{where}: unsupported key type: {_kind(key)}", hint=_SUPPORTED)


def public_key(pem: bytes, *, where: str) -> PublicKey:
    """The key in *pem*, the bytes of the file *where*.

    :raises ConfigError: it is not a supported public key.
    """
    if b"PRIVATE KEY-----" in pem:
        raise ConfigError(
            f"{where}: is a private key; --trust requires a public key",
            hint="run: openssl pkey -in KEY.pem -pubout -out PUBLIC.pem",
        )
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{where}: not a public key in PEM format", hint=_SUPPORTED) from None
    if isinstance(key, Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ConfigError(f"{where}: unsupported key type: {_kind(key)}", hint=_SUPPORTED)


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
    """The bytes of *text* in standard or URL-safe base64; DSSE requires verifiers to accept both.

    :raises ValueError: *text* is not base64.
    """
    try:
        return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("invalid base64") from None


def _why_not_private(pem: bytes, passphrase: str | None) -> str:
    if b"OPENSSH PRIVATE KEY" in pem:
        return "SSH keys are not supported"
    if b"PUBLIC KEY-----" in pem:
        return "is a public key; --key requires a private key"
    also = f", or wrong passphrase in {PASSPHRASE}" if passphrase else ""
    return f"not a private key in PEM format{also}"


def _kind(key: object) -> str:
    if isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        return f"ECDSA on {key.curve.name}"
    return type(key).__name__.strip("_").removesuffix("PrivateKey").removesuffix("PublicKey")


BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_HINT = "it is damaged, or another tool made it; get it again from its source"
_MATERIAL = mapping({}, publicKey=mapping({}, hint=TEXT), certificate=mapping({"rawBytes": TEXT}))
_SCHEMA = mapping(
    {
        "mediaType": {"const": BUNDLE_TYPE},
        "verificationMaterial": _MATERIAL,
        "dsseEnvelope": {"type": "object"},
    }
)


def artifact_annotations(kind: str) -> tuple[tuple[str, str], ...]:
    """The annotations of an artifact with a bundle of a statement of *kind*, a predicate type."""
    return (("dev.sigstore.bundle.content", "dsse-envelope"), ("dev.sigstore.bundle.predicateType", kind))


def wrap(envelope: bytes, signer: str | None) -> bytes:
    """The bundle of *envelope*; its hint is the fingerprint *signer*, in cosign's form.

    The signatures have no keyid: cosign's Go library ignores signatures whose keyid is not an SSH
    fingerprint.
    """
    hint = {"hint": base64.b64encode(bytes.fromhex(signer)).decode()} if signer else {}
    content = json_of(envelope)
    signatures = [{"sig": signature["sig"]} for signature in content["signatures"]]
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": hint, "tlogEntries": []},  # some readers require the list
        "dsseEnvelope": {**content, "signatures": signatures},
    }
    return json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()


def unwrap(bundle: bytes, *, where: str) -> tuple[bytes, bool]:
    """The envelope in *bundle*, and whether it was signed keyless.

    A signature without a keyid gets the fingerprint in the hint as its keyid.

    :raises VerificationFailed: *bundle* is not a bundle of an envelope; the message names *where*.
    """
    document = _read(bundle, where)
    material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
    name = _fingerprint(material.get("publicKey", {}).get("hint", ""))
    signatures = envelope.get("signatures")
    if name and isinstance(signatures, list):
        envelope["signatures"] = [
            {"keyid": name, **signature} if isinstance(signature, dict) else signature
            for signature in signatures
        ]
    return json.dumps(envelope).encode(), "certificate" in material


def _fingerprint(hint: str) -> str:
    """The fingerprint in *hint*, in hex; empty if *hint* is not base64."""
    try:
        return base64.b64decode(hint, validate=True).hex()
    except ValueError:
        return ""


def certificate(bundle: bytes, *, where: str) -> bytes:
    """The certificate in *bundle*, as DER; empty if there is none.

    :raises VerificationFailed: *bundle* is not a bundle of an envelope; the message names *where*.
    """
    found = _read(bundle, where)["verificationMaterial"].get("certificate", {})
    try:
        return base64.b64decode(found.get("rawBytes", ""), validate=True)
    except ValueError:
        raise VerificationFailed(f"{where}: the certificate is not base64", hint=_HINT) from None


def _read(bundle: bytes, where: str) -> Any:
    try:
        document = json_of(bundle)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    if wrong := sentences(document, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    return document
