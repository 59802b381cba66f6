"""What `docker save` sends, of older and newer engines → layers in their order."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable

import pytest

from tests.roots import entry, tar_of
from tests.zstd_frames import program, raw_frame
from torchkiln.compare.docker_save import read_saved, stream_of
from torchkiln.oci.read_tar import DAMAGED

LOWER = tar_of([entry("a", b"1"), entry("b", b"22")])
UPPER = tar_of([entry(".wh.a"), entry("c", b"333")])
CONFIG = {
    "rootfs": {"diff_ids": ["sha256:1", "sha256:2", "sha256:1"]},
    "history": [
        {"created_by": "COPY  a b"},
        {"created_by": "ENV x", "empty_layer": True},
        {"created_by": "RUN rm a"},
        {},
    ],
}


def saved(lower: bytes, upper: bytes, *, documents_last: bool, layers: tuple[str, ...]) -> bytes:
    """An archive of three layers, of which the last is the first once more."""
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": list(layers)}]
    documents = [
        entry("config.json", json.dumps(CONFIG).encode()),
        entry("manifest.json", json.dumps(manifest).encode()),
    ]
    blobs = [
        entry("one/layer.tar", lower),
        entry("three/layer.tar", kind=tarfile.SYMTYPE, to="../one/layer.tar"),
        entry("two/layer.tar", upper),
    ]
    return tar_of([*blobs, *documents] if documents_last else [*documents, *blobs])


ORDER = ("one/layer.tar", "two/layer.tar", "three/layer.tar")


@pytest.mark.parametrize("documents_last", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, program], ids=["tar", "gzip", "zstd"])
@pytest.mark.parametrize("piece", [1, 700, 1 << 20])
def test_layers_in_the_manifests_order(
    documents_last: bool, pack: Callable[[bytes], bytes], piece: int
) -> None:
    """Whatever their order in the archive, and however its bytes arrive."""
    blobs = [pack(layer) for layer in (LOWER, UPPER)]
    data = saved(*blobs, documents_last=documents_last, layers=ORDER)

    pieces = (part for at in range(0, len(data), piece) for part in (b"", data[at : at + piece]))
    with stream_of(pieces) as stream:
        layers = read_saved(stream, lambda path: path == "c")

    assert [layer.diff_id for layer in layers] == ["sha256:1", "sha256:2", "sha256:1"]
    assert [layer.title for layer in layers] == ["COPY a b", "RUN rm a", ""]
    assert [(layer.contents.files, layer.contents.bytes) for layer in layers] == [(2, 3), (1, 3), (2, 3)]
    assert layers[1].contents.deleted == ("a",)
    assert layers[1].contents.texts == {"c": "333"}
    assert [layer.size for layer in layers[:2]] == (
        [None, None] if pack is bytes else [len(blob) for blob in blobs]
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (tar_of([entry("manifest.json", b"[]")]), "unpack"),
        (tar_of([entry("a", b"{}")]), "has no 'manifest.json'"),
        (saved(LOWER, UPPER, documents_last=True, layers=("one/layer.tar",)), "longer"),
        (saved(LOWER, UPPER, documents_last=True, layers=("x", "y", "z")), "has no 'x'"),
        (saved(raw_frame(LOWER)[:-9], UPPER, documents_last=True, layers=ORDER), "before the end"),
        (saved(gzip.compress(LOWER)[:-9], UPPER, documents_last=True, layers=ORDER), None),
        (b"", None),
    ],
    ids=["no image", "no manifest", "too few", "other names", "zstd", "cut", "nothing"],
)
def test_what_cannot_be_read_is_refused(data: bytes, told: str | None) -> None:
    with pytest.raises(DAMAGED, match=told):
        read_saved(io.BytesIO(data), lambda _: False)
