"""Manifests of one image in several forms → the index that holds them all, each client's form where it looks.

Which one a client takes is nowhere specified. Seen (docs/layer-formats.md): Docker and containerd take the
first that fits their platform, so gzip stands before zstd; newer Podman prefers what is marked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.compression import ZSTD
from torchkiln.oci.image import (
    MANIFEST_TYPE,
    canonical_json,
    descriptor,
    digest_of,
)
from torchkiln.oci.layout import INDEX_TYPE

_PREFERRED = "io.github.containers.compression.zstd"  # containers/image's mark: only the text "true" counts


def index_of(manifests: Sequence[bytes]) -> bytes:
    """The index over *manifests*: those without zstd first, else in their order.

    :raises ValueError: they are not of one image, whose config they would share.
    """
    parsed = [(json.loads(manifest), manifest) for manifest in manifests]
    if len({manifest["config"]["digest"] for manifest, _ in parsed}) != 1:
        raise ValueError("an index holds one image in several forms, and these have not one config")
    entries = [_entry(document, data) for document, data in parsed]
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX_TYPE,
            "manifests": sorted(entries, key=lambda entry: "annotations" in entry),
        }
    )


def _entry(manifest: dict[str, Any], data: bytes) -> dict[str, Any]:
    entry = {**descriptor(MANIFEST_TYPE, digest_of(data), len(data)), "platform": LINUX_AMD64.oci}
    if any(layer["mediaType"] == ZSTD.media_type for layer in manifest["layers"]):
        entry["annotations"] = {_PREFERRED: "true"}
    return entry
