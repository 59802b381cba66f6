"""Rekor's log, of both versions: adds signed entries and returns inclusion proofs.

Version 1 stores the envelope's digests, returns a signed time and signs with ECDSA; version 2 stores the
digest of the signed data, returns no time, and signs its checkpoints with Ed25519.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NAME = "rekor.sigstore.test"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def canonical(value: Any) -> bytes:
    """RFC 8785, for strings and integers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pae(kind: str, payload: bytes) -> bytes:
    """The bytes that a DSSE signature signs."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


class Log:
    """An append-only log.

    :param version: the protocol's version, 1 or 2.
    """

    def __init__(self, version: int = 1) -> None:
        self.version, self.leaves = version, [b"the first entry, of another user"]
        self.key = ec.generate_private_key(ec.SECP256R1()) if version == 1 else Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    @property
    def id(self) -> bytes:
        """The log's id: version 1 hashes the key, version 2 name and key, as in signed notes."""
        named = NAME.encode() + b"\n\x01" + self.public[-32:]
        return hashlib.sha256(self.public if self.version == 1 else named).digest()

    def add(self, request: dict[str, Any]) -> dict[str, Any]:
        """Add the entry of *request*; returns the response.

        :raises ValueError, KeyError: the request is not signed by its key.
        """
        body = canonical(self._dsse(request) if self.version == 1 else self._hashed(request))
        self.leaves.append(body)
        return self._promised(body) if self.version == 1 else self._proved(body)

    def _dsse(self, request: dict[str, Any]) -> dict[str, Any]:
        content = request["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        payload, pem = base64.b64decode(envelope["payload"]), base64.b64decode(content["verifiers"][0])
        key = x509.load_pem_x509_certificate(pem).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        signed = pae(envelope["payloadType"], payload)
        for item in envelope["signatures"]:
            key.verify(base64.b64decode(item["sig"]), signed, ec.ECDSA(SHA256()))
        names = [
            {"signature": signature["sig"], "verifier": content["verifiers"][0]}
            for signature in envelope["signatures"]
        ]
        digests = {
            "envelopeHash": hashlib.sha256(content["envelope"].encode()).hexdigest(),
            "payloadHash": hashlib.sha256(payload).hexdigest(),
        }
        spec = {name: {"algorithm": "sha256", "value": value} for name, value in digests.items()}
        return {"apiVersion": "0.0.1", "kind": "dsse", "spec": {**spec, "signatures": names}}

    def _hashed(self, request: dict[str, Any]) -> dict[str, Any]:
        content = request["hashedRekordRequestV002"]
        signature = content["signature"]
        der = base64.b64decode(signature["verifier"]["x509Certificate"]["rawBytes"])
        key = x509.load_der_x509_certificate(der).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        digest = base64.b64decode(content["digest"])
        key.verify(base64.b64decode(signature["content"]), digest, ec.ECDSA(Prehashed(SHA256())))
        data = {"algorithm": "SHA2_256", "digest": content["digest"]}
        return {
            "apiVersion": "0.0.2",
            "kind": "hashedrekord",
            "spec": {"hashedRekordV002": {"data": data, "signature": signature}},
        }

    def _promised(self, body: bytes) -> dict[str, Any]:
        index = len(self.leaves) - 1
        entry = {"body": b64(body), "integratedTime": int(time.time()), "logID": self.id.hex()}
        entry["logIndex"] = index
        proof = {
            "checkpoint": self.checkpoint(),
            "hashes": [item.hex() for item in path(index, self.leaves)],
            "logIndex": index,
            "rootHash": root(self.leaves).hex(),
            "treeSize": len(self.leaves),
        }
        entry_proof = {"inclusionProof": proof, "signedEntryTimestamp": b64(self.sign(canonical(entry)))}
        return {leaf(body).hex(): {**entry, "verification": entry_proof}}

    def _proved(self, body: bytes) -> dict[str, Any]:
        index = len(self.leaves) - 1
        return {
            "logIndex": str(index),
            "logId": {"keyId": b64(self.id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
            "inclusionProof": {
                "logIndex": str(index),
                "rootHash": b64(root(self.leaves)),
                "treeSize": str(len(self.leaves)),
                "hashes": [b64(item) for item in path(index, self.leaves)],
                "checkpoint": {"envelope": self.checkpoint()},
            },
            "canonicalizedBody": b64(body),
        }

    def checkpoint(self) -> str:
        """The tree's size and root, as a signed note."""
        note = f"{NAME}\n{len(self.leaves)}\n{b64(root(self.leaves))}\n"
        return f"{note}\n— {NAME} {b64(self.id[:4] + self.sign(note.encode()))}\n"

    def sign(self, data: bytes) -> bytes:
        if isinstance(self.key, Ed25519PrivateKey):
            return self.key.sign(data)
        return self.key.sign(data, ec.ECDSA(SHA256()))


def leaf(data: bytes) -> bytes:
    """RFC 6962, 2.1."""
    return hashlib.sha256(b"\0" + data).digest()


def root(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1: the tree's hash."""
    if len(leaves) == 1:
        return leaf(leaves[0])
    half = _half(len(leaves))
    return hashlib.sha256(b"\x01" + root(leaves[:half]) + root(leaves[half:])).digest()


def path(index: int, leaves: list[bytes]) -> list[bytes]:
    """RFC 6962, 2.1.1: the hashes from the leaf to the root."""
    if len(leaves) == 1:
        return []
    half = _half(len(leaves))
    if index < half:
        return [*path(index, leaves[:half]), root(leaves[half:])]
    return [*path(index - half, leaves[half:]), root(leaves[:half])]


def _half(count: int) -> int:
    """The largest power of two below *count*."""
    return 1 << (count - 1).bit_length() - 1
