"""DSSE envelope ⇄ Sigstore's bundle, version 0.3: the form in which cosign looks for attestations.

A bundle around an envelope that a key signed names the key by a hint, which decides nothing here. One that
was signed without a key of one's own (`keyless`) holds a certificate and a log's entries instead.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.schema import sentences
from torchkiln.strict import json_of

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
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
    """A bundle around *envelope*; its hint is the *signer*'s fingerprint, as cosign writes it."""
    hint = {"hint": base64.b64encode(bytes.fromhex(signer)).decode()} if signer else {}
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": hint},
        "dsseEnvelope": json.loads(envelope),
    }
    return json.dumps(bundle, sort_keys=True, separators=(",", ":")).encode()


def unwrap(bundle: bytes, *, where: str) -> tuple[bytes, bool]:
    """The envelope in *bundle*, and whether it was signed without a key of the signer's own.

    :raises VerificationFailed: it is no bundle of an envelope; names *where*.
    """
    told = _read(bundle, where)
    return json.dumps(told["dsseEnvelope"]).encode(), "certificate" in told["verificationMaterial"]


def certificate(bundle: bytes, *, where: str) -> bytes:
    """The certificate in *bundle*, as DER; empty where there is none.

    :raises VerificationFailed: it is no bundle of an envelope; names *where*.
    """
    there = _read(bundle, where)["verificationMaterial"].get("certificate", {})
    return base64.b64decode(there.get("rawBytes", ""))


def _read(bundle: bytes, where: str) -> Any:
    try:
        told = json_of(bundle)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint="it was damaged, or is not ours") from None
    if wrong := sentences(told, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong), hint="it was damaged, or is not ours")
    return told
