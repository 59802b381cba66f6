"""Signs cache records with a key of this user, so that records that others wrote are ignored.

The key, keys/machine.pem, is generated on first use: an Ed25519 key that only its owner can read. Records
from another machine's backup, or from a container that can write to the cache, lack the key's signature.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from torchkiln.attest import dsse
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.store.store import Store
from torchkiln.util.ownership import fault_of_secret
from torchkiln.util.strict_json import open_plain

_LIMIT = 4096  # bytes of the key's file
_HINT = (
    "delete it: torchkiln generates a new key; smoke tests run again, because records signed with the old key"
    " do not count"
)


def signed(store: Store, payload_type: str, payload: bytes) -> dict[str, Any]:
    """*payload* in a DSSE envelope, signed by this machine's key, which is generated if there is none.

    :raises ConfigError: the key is invalid, or other users may read it.
    :raises OSError: it cannot be written.
    """
    key = _read(_path(store)) or _make(store)
    envelope: dict[str, Any] = json.loads(dsse.sign(payload_type, payload, key))
    return envelope


def verified(store: Store, payload_type: str, envelope: Mapping[str, Any], *, where: str) -> bytes | None:
    """The payload of *envelope* if this machine's key signed it, else None.

    :raises ConfigError: the key is invalid, or other users may read it.
    """
    key = _read(_path(store))
    if key is None:
        return None
    try:
        found = dsse.decode(json.dumps(envelope).encode(), where=where)
        if found.payload_type != payload_type:
            return None
        dsse.verify(found, [key.public_key()], where=where)
    except VerificationFailed:
        return None
    return found.payload


def _path(store: Store) -> Path:
    return store.root / "keys" / "machine.pem"


def _read(path: Path) -> Ed25519PrivateKey | None:
    """The key in the file *path*; None if the file does not exist."""
    try:
        with open_plain(path, follow=False) as file:
            fault, data = fault_of_secret(os.fstat(file.fileno())), file.read(_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"this machine's key {path}: {error.strerror}", hint=_HINT) from error
    if fault:
        raise ConfigError(f"this machine's key {path} is not used: {fault}", hint=_HINT)
    key = dsse.private_key(data, None, where=str(path))
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an Ed25519 key", hint=_HINT)
    return key


def _make(store: Store) -> Ed25519PrivateKey:
    """Generate a key. If two processes do so at the same time, both use the key of one of them."""
    path = _path(store)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    temporary = store.temporary("key")
    try:
        store.private("keys")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, this never replaces a file
    finally:
        temporary.unlink(missing_ok=True)
    key = _read(path)
    if key is None:
        raise ConfigError(f"this machine's key {path} was deleted while it was written", hint="run again")
    return key
