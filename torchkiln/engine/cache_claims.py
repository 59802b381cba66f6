"""Lists the files of the cache that a build needs, and records the files that its image uses.

`cache.usage` reads these records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from torchkiln.base.archive import deb_path
from torchkiln.base.interpreter import folder_name
from torchkiln.engine.cache_keys import key_of, layer_key
from torchkiln.engine.cuda_layers import kept_path
from torchkiln.model.apt import LockedApt
from torchkiln.model.layer import BuiltImage
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedStandalone, LockedWheel
from torchkiln.model.plan import ArtefactLayer, ImagePlan
from torchkiln.plan.layers import cell_layers
from torchkiln.store.store import Store


def remember_layout(store: Store, layout: Path) -> None:
    """Record the path of *layout*, whose images `cache.usage` then reads. Call it before the build."""
    path = str(layout.absolute())
    store.put_record("layouts", hashlib.sha256(path.encode()).hexdigest(), {"path": path})


def remember_image(store: Store, image: BuiltImage, plan: ImagePlan, reused: Iterable[str]) -> None:
    """Record the files that *image* of *plan* uses; mark the files of layers not in *reused* as used now."""
    locked = plan.locked
    packs = _packs(locked)
    store.put_record(
        "images",
        image.manifest.removeprefix("sha256:"),
        {
            "tag": image.tag,
            "base": locked.base.digest.removeprefix("sha256:"),
            **({"interpreter": folder_name(locked.base, locked.standalone)} if locked.standalone else {}),
            "layers": {layer.blob.digest.removeprefix("sha256:"): layer.title for layer in image.layers},
            "wheels": packs,
            "archives": [*(kept_path(archive) for archive in locked.archives), *_debs(plan)],
        },
    )
    unused = frozenset(reused)
    for layer in plan.made:
        if layer.title not in unused:
            for path in map(source_path, layer.inputs):
                store.touch(store.root / path)
                if path in packs:
                    store.touch(store.root / packs[path])


def build_needs(plan: ImagePlan) -> frozenset[str]:
    """Every path in the cache that a build of *plan* may read or write."""
    locked = plan.locked
    records = {record_path("layers", key_of(layer)) for layer in plan.made}
    blobs = (blob_path(layer.artefact.digest) for layer in plan.of(ArtefactLayer))
    return frozenset({*records, *blobs, *_debs(plan), *source_paths(locked)})


def _debs(plan: ImagePlan) -> list[str]:
    """The files from which the layer of a project's OS packages is made."""
    return [
        deb_path(deb)
        for layer in plan.of(ArtefactLayer)
        if isinstance(layer.artefact, LockedApt)
        for deb in layer.artefact.debs
    ]


def source_paths(locked: LockedCell) -> frozenset[str]:
    packs = _packs(locked)
    archives = map(kept_path, locked.archives)
    own = [interpreter_path(locked.base, locked.standalone)] if locked.standalone else []
    return frozenset({*packs, *packs.values(), *archives, interpreter_path(locked.base), *own})


def _packs(locked: LockedCell) -> dict[str, str]:
    """The path of the byte-code of each wheel, by the path of the wheel."""
    return {
        wheel_path(wheel): f"bytecode/{layer_key((wheel,), layer.python)}.pack"
        for layer in cell_layers(locked)
        for wheel in layer.wheels
    }


def source_path(source: LockedWheel | LockedArchive) -> str:
    """The path in the cache of a wheel, or of the extracted files of an archive."""
    return kept_path(source) if isinstance(source, LockedArchive) else wheel_path(source)


def wheel_path(wheel: LockedWheel) -> str:
    return f"wheels/{wheel.sha256}/{wheel.filename}"


def interpreter_path(base: LockedBase, standalone: LockedStandalone | None = None) -> str:
    return f"interpreters/{folder_name(base, standalone)}"


def blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def record_path(kind: str, key: str) -> str:
    return f"records/{kind}/{key}.json"
