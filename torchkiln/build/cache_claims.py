"""What a build needs of the cache, and what it leaves there so that its tags are known later.

`cache.usage` reads it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from torchkiln.build.cache_keys import key_of, layer_key
from torchkiln.build.cuda_layers import kept_path
from torchkiln.model.image import BuiltImage
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedWheel
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.layers import files_of
from torchkiln.store.store import Store


def remember_layout(store: Store, layout: Path) -> None:
    """Let tags in *layout* count from now on; before the build, so that no image is there unknown."""
    place = str(layout.absolute())
    store.put_record("layouts", hashlib.sha256(place.encode()).hexdigest(), {"path": place})


def remember_image(store: Store, image: BuiltImage, plan: ImagePlan, reused: Iterable[str]) -> None:
    """Note what *image* of *plan* was made of; its files count as used where their layer was not *reused*."""
    locked = plan.locked
    packs = {wheel_path(wheel): pack_path(wheel, locked.base) for wheel in files_of(locked)}
    store.put_record(
        "images",
        image.manifest.removeprefix("sha256:"),
        {
            "tag": image.tag,
            "base": locked.base.digest.removeprefix("sha256:"),
            "layers": {layer.blob.digest.removeprefix("sha256:"): layer.title for layer in image.layers},
            "wheels": packs,
            "archives": [kept_path(archive) for archive in locked.archives],
        },
    )
    old = frozenset(reused)
    for layer in plan.made:
        if layer.title not in old:
            for path in map(source_path, layer.inputs):
                store.touch(store.root / path)
                if path in packs:
                    store.touch(store.root / packs[path])


def build_needs(plan: ImagePlan) -> frozenset[str]:
    """Every path in the cache that a build of *plan* may read or make."""
    locked = plan.locked
    records = {record_path("layers", key_of(layer)) for layer in plan.made}
    blobs = (blob_path(found.digest) for found in (locked.base, locked.tools) if found)
    return frozenset({*records, *blobs, *source_paths(locked)})


def source_paths(locked: LockedCell) -> frozenset[str]:
    wheels = {wheel_path(wheel) for wheel in files_of(locked)}
    packs = {pack_path(wheel, locked.base) for wheel in locked.wheels}
    archives = {kept_path(archive) for archive in locked.archives}
    return frozenset(wheels | packs | archives | {interpreter_path(locked.base)})


def source_path(one: LockedWheel | LockedArchive) -> str:
    """Where what a layer is made of lies."""
    return kept_path(one) if isinstance(one, LockedArchive) else wheel_path(one)


def wheel_path(wheel: LockedWheel) -> str:
    return f"wheels/{wheel.sha256}/{wheel.filename}"


def pack_path(wheel: LockedWheel, base: LockedBase) -> str:
    return f"bytecode/{layer_key((wheel,), base.python)}.pack"


def interpreter_path(base: LockedBase) -> str:
    return f"interpreters/{base.digest.removeprefix('sha256:')}"


def blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def record_path(kind: str, key: str) -> str:
    return f"records/{kind}/{key}.json"
