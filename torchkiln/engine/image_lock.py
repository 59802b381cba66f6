"""Finds the lock of an image, and keeps it in the cache.

If the locked base cannot be had, `build` uses another base: then the lock of the image is not the committed
one. So the layout has the lock of each image, and the cache has it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torchkiln.errors import Stale
from torchkiln.locks.file import LIMIT, from_json, lock_digest, to_json
from torchkiln.locks.lock import load_locked, on_base
from torchkiln.model.lock import LockedCell
from torchkiln.oci.labels import labels
from torchkiln.oci.layout import ImageOnDisk, Layout, open_layout
from torchkiln.store.store import Store
from torchkiln.util.strict_json import read_file

_RECORDS = "locks"
_IS_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def remember_lock(locked: LockedCell, store: Store) -> None:
    """Keep *locked* in *store*: a copy of the image in another layout or format has only its digest."""
    store.put_record(_RECORDS, lock_digest(locked).removeprefix("sha256:"), json.loads(to_json(locked)))


def lock_of(image: ImageOnDisk, tag: str, layout: Path, images: Path, store: Store) -> LockedCell:
    """The lock from which *image* of *layout* was built.

    It is the lock of *tag* in *images*, whose base and tools are replaced by others if the image has others.
    The image's config has the lock's digest; only base and tools are read from the lock in *layout* or
    *store*, because a layout may be that of a stranger.

    :raises Stale: there is no valid lock of *tag*, or the image was built from another one.
    """
    committed = load_locked(images, tag)
    own = labels(image).get("torchkiln.lock", "")
    if own in ("", lock_digest(committed)):
        return committed
    for kept in _kept(own, image, open_layout(layout), store):
        found = on_base(committed, kept.base, kept.tools)
        if lock_digest(found) == own:
            return found
    raise Stale(
        f"{image.ref}: was built from the lock {own[:19]}, but {images / tag}/lock.json is"
        f" {lock_digest(committed)[:19]}",
        hint=f"build the image again: torchkiln build {tag}",
    )


def _kept(digest: str, image: ImageOnDisk, layout: Layout, store: Store) -> Iterator[LockedCell]:
    # A lock can be damaged, or written by another version of torchkiln.
    with suppress(OSError, Stale):
        yield from_json(read_file(layout.lock(image.manifest), LIMIT, follow=False))
    if kept := kept_lock(digest, store):
        yield kept


def kept_lock(digest: str, store: Store) -> LockedCell | None:
    """The lock that *store* keeps under *digest*, which the caller must compare; None: there is none."""
    record = store.record(_RECORDS, digest.removeprefix("sha256:")) if _IS_DIGEST.fullmatch(digest) else None
    with suppress(Stale):
        return from_json(json.dumps(record).encode()) if record else None
    return None
