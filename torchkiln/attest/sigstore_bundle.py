"""Wraps DSSE envelopes in Sigstore bundles (version 0.3, cosign's format of attestations), and unwraps them.

If a key signed the envelope, the bundle has a hint that names the key; the hint is not trusted. After keyless
signing (`keyless`), the bundle has a certificate and log entries instead.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.util.schema import sentences
from torchkiln.util.strict_json import json_of

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_HINT = "it is damaged, or another tool made it; get it again from its source"
_CERTIFICATE = {"type": "object", "required": ["rawBytes"], "properties": {"rawBytes": {"type": "string"}}}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["mediaType", "verificationMaterial", "dsseEnvelope"],
    "properties": {
        "mediaType": {"const": BUNDLE_TYPE},
        "verificationMaterial": {
            "type": "object",
            "properties": {
                "publicKey": {"type": "object", "properties": {"hint": {"type": "string"}}},
                "certificate": _CERTIFICATE,
            },
        },
        "dsseEnvelope": {"type": "object"},
    },
}


def artifact_annotations(kind: str) -> tuple[tuple[str, str], ...]:
    """The annotations of an artifact with a bundle of a statement of *kind*, a predicate type."""
    return (("dev.sigstore.bundle.content", "dsse-envelope"), ("dev.sigstore.bundle.predicateType", kind))


def wrap(envelope: bytes, signer: str | None) -> bytes:
    """The bundle of *envelope*; its hint is the fingerprint *signer*, in cosign's form.

    The signatures have no keyid: cosign's Go library ignores signatures whose keyid is not an SSH
    fingerprint.
    """
    hint = {"hint": base64.b64encode(bytes.fromhex(signer)).decode()} if signer else {}
    content = json.loads(envelope)
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
