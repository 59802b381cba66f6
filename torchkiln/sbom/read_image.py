"""Makes the bill of an image: reads the package metadata in its layers, and caches it by layer.

A layer is decompressed completely to verify its digest, which takes a minute for an image. A layer that was
built from wheels in the store is not decompressed: the metadata is read from the wheels. The result is cached
by diff_id, so that only new layers of another image are read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchkiln import __version__
from torchkiln.base.archive import files_of
from torchkiln.compare.images import begin_reading, contents_of
from torchkiln.compare.packages import links_of, texts_of
from torchkiln.engine.cache_keys import record_of
from torchkiln.errors import KilnError
from torchkiln.locks.file import lock_digest
from torchkiln.model.contents import LayerContents
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.plan.plan import plan
from torchkiln.sbom.bill import Bill, bill_of
from torchkiln.sbom.evidence import Evidence, evidence_of, is_evidence, shortened
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme, destination, parse_name

RECORDS = "evidence"
_JOBS = 2  # layers that are read at once
_FORM = 3  # increase it when `is_evidence` accepts more files
_MAX_TEXT = 16 << 20  # bytes of a text in a wheel; if one is larger, the layer is read


def bill_of_image(
    image: ImageOnDisk,
    locked: LockedCell,
    images: Path,
    store: Store,
    *,
    name: str,
    observer: Observer | None = None,
) -> Bill:
    """The bill of *image*, built from *locked*; layers whose metadata is in *store* are not read.

    :param images: the folder of locks.
    :param name: of the repository, "pytorch-cuda".
    :raises VerificationFailed: a layer is damaged, or the image does not match the lock.
    :raises ConfigError: the committed record of the base's files is invalid.
    """
    planned = plan(locked, (), aliases=(), lock_digest=lock_digest(locked))
    return bill_of(
        locked,
        image.manifest,
        read_evidence(image, store, made_of=made_of(planned, store), observer=observer),
        files=files_of(images, locked, store),
        name=name,
        tool=__version__,
    )


def read_evidence(
    image: ImageOnDisk,
    store: Store,
    *,
    made_of: Mapping[Digest, MadeOf] | None = None,
    observer: Observer | None = None,
) -> Evidence:
    """The package metadata in *image*.

    :param made_of: the wheels in *store* from which layers were built, by the layer's diff_id.
    :raises VerificationFailed: a layer is damaged, or its package metadata is invalid.
    """
    with ThreadPoolExecutor(_JOBS) as pool:
        read = partial(_layer, store=store, known=made_of or {}, observer=observer or Silent())
        layers = list(pool.map(read, image.layers))
    return evidence_of(texts_of(layers), links_of(layers))


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeOf:
    """The wheels that a layer was built from, and their installation folders."""

    wheels: tuple[Path, ...]
    scheme: Scheme


def made_of(planned: ImagePlan, store: Store) -> dict[Digest, MadeOf]:
    """diff_id -> wheels, for each layer of *planned* whose record and wheels are in *store*."""
    found = {}
    for spec in planned.of(WheelLayer):
        record = record_of(spec, store)
        if record and all(map(store.has_wheel, spec.wheels)):
            wheels = tuple(map(store.wheel, spec.wheels))
            found[record.blob.diff_id] = MadeOf(wheels=wheels, scheme=Scheme.of(spec.python))
    return found


def _layer(
    layer: LayerOnDisk, store: Store, known: Mapping[Digest, MadeOf], observer: Observer
) -> LayerContents:
    key = layer.diff_id.removeprefix("sha256:")
    cached = _contents(store.record(RECORDS, key) or {})
    if cached is not None:
        store.touch(store.root / "records" / RECORDS / f"{key}.json")
        return cached
    found = _of_wheels(known[layer.diff_id]) if layer.diff_id in known else None
    if found is None:
        begin_reading([layer], observer)
        read = contents_of(layer, is_evidence, observer)
        texts = {path: shortened(path, text) for path, text in read.texts.items()}
        found = _only(texts, read.links, read.deleted)
    record = {"texts": dict(found.texts), "links": dict(found.links), "deleted": list(found.deleted)}
    store.put_record(RECORDS, key, {"form": _FORM, **record})
    return found


def _of_wheels(made: MadeOf) -> LayerContents | None:
    """The metadata of a layer from its wheels; None if a wheel cannot be read, so that the layer is read."""
    texts: dict[str, str] = {}
    try:
        for path in made.wheels:
            texts |= dict(_texts(path, made.scheme))
    except (OSError, ValueError, zipfile.BadZipFile, KilnError):
        return None
    return _only(texts, {}, ())


def _texts(path: Path, scheme: Scheme) -> Iterator[tuple[str, str]]:
    name = parse_name(path.name)
    with zipfile.ZipFile(path) as wheel:
        for entry in wheel.infolist():
            place = destination(entry.filename, name, scheme)
            if is_evidence(place):
                if entry.file_size > _MAX_TEXT:
                    raise ValueError(f"{place} is too long")
                yield place, shortened(place, wheel.read(entry).decode(errors="replace"))


def _only(texts: Mapping[str, str], links: Mapping[str, str], deleted: Sequence[str]) -> LayerContents:
    """The contents without the numbers of files and bytes, which an SBOM does not need."""
    return LayerContents(files=0, bytes=0, texts=texts, links=links, deleted=tuple(deleted))


def _contents(record: Mapping[str, Any]) -> LayerContents | None:
    if record.get("form") != _FORM or any(record.get(key) is None for key in ("texts", "links", "deleted")):
        return None
    return _only(record["texts"], record["links"], record["deleted"])
