"""Puts files into a cache, and makes their lock entries."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchkiln.base import artefact
from torchkiln.model.cell import Source
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedBase, LockedWheel
from torchkiln.oci.encode import encode_bytes
from torchkiln.store.store import Store
from torchkiln.util.places import IMAGES


def put(data: bytes, place: Path, store: Store) -> Path:
    """Put *data* into *store*, at its path *place*."""
    temporary = store.temporary("put")
    temporary.write_bytes(data)
    return store.adopt(temporary, place)


def put_tar(tar: bytes, store: Store) -> Blob:
    """Put the blob of *tar* into *store*."""
    blob, encoded = encode_bytes(tar)
    put(blob, store.blob(encoded.digest), store)
    return encoded


def locked_file(name: str, version: str, filename: str, data: bytes) -> LockedWheel:
    """The lock entry of a wheel or an sdist."""
    sha256 = hashlib.sha256(data).hexdigest()
    return LockedWheel(
        name=name, version=version, filename=filename, sha256=sha256, size=len(data), index=Source.DEFAULT
    )


def put_file(name: str, version: str, filename: str, data: bytes, store: Store) -> LockedWheel:
    """Put a wheel or an sdist into *store*."""
    found = locked_file(name, version, filename, data)
    put(data, store.wheel(found), store)
    return found


def committed_base(os_name: str = "debian12") -> LockedBase:
    """torchkiln's own lock of the base of *os_name*."""
    found = artefact.read_lock(IMAGES, os_name)
    assert found is not None
    return found
