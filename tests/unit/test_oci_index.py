"""One image in several forms → the index: gzip first, zstd marked, nothing else in it."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from tests.oci_samples import digest, plan
from torchkiln.nouns import BuiltLayer
from torchkiln.oci.image import describe
from torchkiln.oci.index import index_of

PLAIN, SMALL = (
    (BuiltLayer(title="base", digest=digest(blob), diff_id=digest(b"tar"), size=len(blob), unpacked=33),)
    for blob in (b"gzip blob", b"zstd")
)
GZIP, ZSTD = describe(plan(), PLAIN), describe(plan(), SMALL, "zstd")


def test_a_zstd_image_differs_by_its_layers_alone() -> None:
    """Media type, digest and size; the config is the same to the last byte."""
    gzip, zstd = (json.loads(one.manifest) for one in (GZIP, ZSTD))

    assert GZIP.config == ZSTD.config
    assert zstd.pop("layers") == [
        {
            "mediaType": "application/vnd.oci.image.layer.v1.tar+zstd",
            "digest": digest(b"zstd"),
            "size": 4,
        }
    ]
    assert gzip.pop("layers")[0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert gzip == zstd
    assert describe(plan(), PLAIN, "gzip-joined") == GZIP


@pytest.mark.parametrize("order", list(permutations([GZIP.manifest, ZSTD.manifest])), ids=["gzip", "zstd"])
def test_gzip_stands_first(order: tuple[bytes, bytes]) -> None:
    """In whichever order they come."""
    platform = {"architecture": "amd64", "os": "linux"}

    assert json.loads(index_of(order)) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": GZIP.manifest_digest,
                "size": len(GZIP.manifest),
                "platform": platform,
            },
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": ZSTD.manifest_digest,
                "size": len(ZSTD.manifest),
                "platform": platform,
                "annotations": {"io.github.containers.compression.zstd": "true"},
            },
        ],
    }
    assert index_of(order) == index_of(order[::-1])


def test_two_images_have_no_index() -> None:
    other = describe(plan(titles=("other",)), (PLAIN[0], PLAIN[0]))

    with pytest.raises(ValueError, match="not one config"):
        index_of([GZIP.manifest, other.manifest])
    with pytest.raises(ValueError, match="not one config"):
        index_of([])
