"""Records in the cache to which repositories a blob was pushed, so that the next push can mount it.

A record is only a hint: a wrong one costs one request.
"""

from __future__ import annotations

import hashlib

from torchkiln.model.digest import Digest
from torchkiln.registry.reference import Repository
from torchkiln.store.store import Store

_KIND = "pushed"
_MOST = 3  # maximum repositories per blob; a mount needs only one


class History:
    """The records in *store*; None: nothing is recorded."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def sources(self, digest: Digest, target: Repository) -> tuple[str, ...]:
        """The other repositories of *target*'s registry that have the blob, the latest first."""
        found = self._store.record(_KIND, _key(digest, target.host)) if self._store else None
        names = found.get("repositories") if found else None
        if not isinstance(names, list):
            return ()
        return tuple(name for name in names if isinstance(name, str) and name != target.name)

    def note(self, digest: Digest, target: Repository) -> None:
        """Record that the blob is in *target*."""
        if self._store is not None:
            names = (target.name, *self.sources(digest, target))[:_MOST]
            record = {"registry": target.host, "blob": digest, "repositories": list(names)}
            if self._store.record(_KIND, key := _key(digest, target.host)) != record:
                self._store.put_record(_KIND, key, record)


def _key(digest: Digest, host: str) -> str:
    return hashlib.sha256(f"{host}\n{digest}".encode()).hexdigest()
