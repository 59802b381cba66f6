"""DSSE envelope ⇄ Sigstore's bundle, version 0.3: the form in which cosign looks for attestations.

A bundle around an envelope that a key signed names the key by a hint, which decides nothing here. One that
was signed without a key of one's own (`keyless`) holds a certificate and a log's entries instead.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_HINT = "it was damaged, or is not ours"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["mediaType", "verificationMaterial", "dsseEnvelope"],
    "properties": {
        "mediaType": {"const": BUNDLE_TYPE},
        "verificationMaterial": {
            "type": "object",
            "properties": {
                "publicKey": {"type": "object", "properties": {"hint": {"type": "string"}}},
                "certificate": {
                    "type": "object",
                    "required": ["rawBytes"],
                    "properties": {"rawBytes": {"type": "string"}},
                },
            },
        },
        "dsseEnvelope": {"type": "object"},
    },
}


def wrap(envelope: bytes, signer: str | None) -> bytes:
    """A bundle around *envelope*; its hint is the *signer*'s fingerprint, as cosign writes it.

    The signature bears no name of its own in it: the Go library that cosign verifies with passes over every
    one that is named otherwise than SSH would name the key.
    """
    hint = {"hint": base64.b64encode(bytes.fromhex(signer)).decode()} if signer else {}
    told = json.loads(envelope)
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": hint, "tlogEntries": []},  # a list that some readers demand
        "dsseEnvelope": {**told, "signatures": [{"sig": one["sig"]} for one in told["signatures"]]},
    }
    return json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()


def unwrap(bundle: bytes, *, where: str) -> tuple[bytes, bool]:
    """The envelope in *bundle*, and whether it was signed without a key of the signer's own.

    A signature without a name has the hint's.

    :raises VerificationFailed: it is no bundle of an envelope; names *where*.
    """
    told = _read(bundle, where)
    material, envelope = told["verificationMaterial"], told["dsseEnvelope"]
    name = _fingerprint(material.get("publicKey", {}).get("hint", ""))
    signatures = envelope.get("signatures")
    if name and isinstance(signatures, list):
        envelope["signatures"] = [
            {"keyid": name, **one} if isinstance(one, dict) else one for one in signatures
        ]
    return json.dumps(envelope).encode(), "certificate" in material


def _fingerprint(hint: str) -> str:
    """Hex; empty where *hint* is none of ours."""
    try:
        return base64.b64decode(hint, validate=True).hex()
    except ValueError:
        return ""


def certificate(bundle: bytes, *, where: str) -> bytes:
    """The certificate in *bundle*, as DER; empty where there is none.

    :raises VerificationFailed: it is no bundle of an envelope; names *where*.
    """
    there = _read(bundle, where)["verificationMaterial"].get("certificate", {})
    try:
        return base64.b64decode(there.get("rawBytes", ""), validate=True)
    except ValueError:
        raise VerificationFailed(f"{where}: its certificate is not base64", hint=_HINT) from None


def _read(bundle: bytes, where: str) -> Any:
    try:
        told = json_of(bundle)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None
    if wrong := sentences(told, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    return told
