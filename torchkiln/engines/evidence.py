"""ImageOnDisk -> Evidence: what the image's layers say of what is installed, each layer read once and noted.

Reading inflates a layer whole, for its digest must be right: a minute for an image. What was read is noted by
the layer's diff_id, so that a sibling image, which has most of its layers in common, reads only the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torchkiln.contents import LayerContents
from torchkiln.engines.packages import links_of, texts_of
from torchkiln.engines.reading import contents_of
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.sbom.evidence import Evidence, evidence_of, is_evidence, shortened
from torchkiln.store import Store

RECORDS = "evidence"
_FORM = 1  # raise it when `is_evidence` wants more


def read_evidence(image: ImageOnDisk, store: Store, *, jobs: int = 2) -> Evidence:
    """What is installed in *image*, by its own account.

    :raises VerificationFailed: a layer is damaged, or what it says of its packages cannot be used.
    """
    with ThreadPoolExecutor(jobs) as pool:
        layers = list(pool.map(lambda layer: _layer(layer, store), image.layers))
    return evidence_of(texts_of(layers), links_of(layers))


def _layer(layer: LayerOnDisk, store: Store) -> LayerContents:
    key = layer.diff_id.removeprefix("sha256:")
    known = _contents(store.record(RECORDS, key) or {})
    if known is not None:
        store.touch(store.root / "records" / RECORDS / f"{key}.json")
        return known
    found = contents_of(layer, is_evidence)
    texts = {path: shortened(path, text) for path, text in found.texts.items()}
    told = {"texts": texts, "links": dict(found.links), "deleted": list(found.deleted)}
    store.put_record(RECORDS, key, {"form": _FORM, "files": found.files, "bytes": found.bytes, **told})
    return LayerContents(
        files=found.files, bytes=found.bytes, texts=texts, links=found.links, deleted=found.deleted
    )


def _contents(record: Mapping[str, Any]) -> LayerContents | None:
    told = {key: record.get(key) for key in ("files", "bytes", "texts", "links", "deleted")}
    if record.get("form") != _FORM or None in told.values():
        return None
    return LayerContents(**told | {"deleted": tuple(record["deleted"])})
