"""ImageOnDisk -> Evidence: what the image's layers say of what is installed, each layer read once and noted.

Reading inflates a layer whole, for its digest must be right: a minute for an image. A layer that the store
made of wheels which it still has says what these say, and is not inflated. What was read is noted by the
layer's diff_id, so that a sibling image, which has most of its layers in common, reads only the others.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.build.records import record_of
from torchkiln.compare.images import contents_of
from torchkiln.compare.packages import links_of, texts_of
from torchkiln.errors import KilnError
from torchkiln.model.contents import LayerContents
from torchkiln.model.digest import Digest
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.recipe import PREFIX, minor
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.sbom.evidence import Evidence, evidence_of, is_evidence, shortened
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme, destination, parse_name

RECORDS = "evidence"
_FORM = 2  # raise it when `is_evidence` wants more
_LARGEST = 16 << 20  # bytes of a text that is taken out of a wheel; for a larger one the layer is read


def read_evidence(
    image: ImageOnDisk, store: Store, *, made_of: Mapping[Digest, MadeOf] | None = None, jobs: int = 2
) -> Evidence:
    """What is installed in *image*, by its own account.

    :param made_of: by diff_id, the layers of which *store* knows that these wheels gave them.
    :raises VerificationFailed: a layer is damaged, or what it says of its packages cannot be used.
    """
    with ThreadPoolExecutor(jobs) as pool:
        layers = list(pool.map(lambda layer: _layer(layer, store, made_of or {}), image.layers))
    return evidence_of(texts_of(layers), links_of(layers))


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeOf:
    """The wheels that gave a layer, and the folders into which they went."""

    wheels: tuple[Path, ...]
    scheme: Scheme


def made_of(plan: ImagePlan, store: Store) -> dict[Digest, MadeOf]:
    """The layers of *plan* which *store* made, or got by the lock's word, of wheels that it still has."""
    scheme = Scheme(prefix=PREFIX, python=minor(plan.locked.base.python))
    found = {}
    for spec in plan.of(WheelLayer):
        record = record_of(spec, store)
        if record and all(map(store.has_wheel, spec.wheels)):
            wheels = tuple(map(store.wheel, spec.wheels))
            found[record.blob.diff_id] = MadeOf(wheels=wheels, scheme=scheme)
    return found


def _layer(layer: LayerOnDisk, store: Store, known: Mapping[Digest, MadeOf]) -> LayerContents:
    key = layer.diff_id.removeprefix("sha256:")
    noted = _contents(store.record(RECORDS, key) or {})
    if noted is not None:
        store.touch(store.root / "records" / RECORDS / f"{key}.json")
        return noted
    found = _of_wheels(known[layer.diff_id]) if layer.diff_id in known else None
    if found is None:
        read = contents_of(layer, is_evidence)
        texts = {path: shortened(path, text) for path, text in read.texts.items()}
        found = _only(texts, read.links, read.deleted)
    told = {"texts": dict(found.texts), "links": dict(found.links), "deleted": list(found.deleted)}
    store.put_record(RECORDS, key, {"form": _FORM, **told})
    return found


def _of_wheels(made: MadeOf) -> LayerContents | None:
    """What a layer of these wheels says; None: a wheel is no longer what it was, so the layer is asked."""
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
                if entry.file_size > _LARGEST:
                    raise ValueError(f"{place} is too long")
                yield place, shortened(place, wheel.read(entry).decode(errors="replace"))


def _only(texts: Mapping[str, str], links: Mapping[str, str], deleted: Sequence[str]) -> LayerContents:
    """What was read for an SBOM; nobody counted files."""
    return LayerContents(files=0, bytes=0, texts=texts, links=links, deleted=tuple(deleted))


def _contents(record: Mapping[str, Any]) -> LayerContents | None:
    told = [record.get(key) for key in ("texts", "links", "deleted")]
    if record.get("form") != _FORM or None in told:
        return None
    return _only(record["texts"], record["links"], record["deleted"])
