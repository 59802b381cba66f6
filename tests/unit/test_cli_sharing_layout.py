"""`sharing --output`: the images of a layout as they were built, and what is said to one that is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.oci_samples import BlobFolder, files, plan, tar_of
from tests.unit.test_cli_sharing import EIGHT, SEVEN, run, told
from tests.zstd_frames import program
from torchkiln.errors import ConfigError, NothingSelected, VerificationFailed
from torchkiln.oci.layout import Layout, open_layout, write_image


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two images on one base and with one top, between which one has a layer more; one with an alias."""
    store = BlobFolder(tmp_path / "blobs")
    base, middle, top = (
        store.layer(title, tar_of(files(**{title: title.encode() * count})))
        for title, count in (("base", 500_000), ("middle", 9), ("top", 20_000))
    )
    for tag, layers, refs in (
        (SEVEN, (base, top), ("v2.7", SEVEN)),
        (EIGHT, (base, middle, top), (EIGHT,)),
    ):
        titles = tuple(layer.title for layer in layers)
        write_image(tmp_path / "dist", plan(tag, titles=titles), layers, store.path, refs=refs)
    return open_layout(tmp_path / "dist")


def layers_of(image: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["compressed_bytes"], one["unpacked_bytes"]) for one in image["layers"]]


def test_a_layouts_images_as_they_were_built(layout: Layout) -> None:
    """An image of two names is one; sizes are those of the files and of the tars in them."""
    found = told("--output", str(layout.path))
    disk = [(one["bytes"], one["images"]) for one in found["disk"]["kept"]]
    seven, eight = (layers_of(image) for image in found["images"])

    assert [image["tag"] for image in found["images"]] == [SEVEN, EIGHT]
    assert seven == [eight[0], eight[2]]
    blobs = [layer.path.read_bytes() for layer in layout.image(EIGHT).layers]
    assert eight == [(len(blob), len(gzip.decompress(blob))) for blob in blobs]
    assert found["registry"]["kept_bytes"] == sum(packed for packed, _ in eight)
    assert disk == [
        (eight[0][1], [SEVEN, EIGHT]),
        (eight[2][1], [SEVEN]),
        (eight[1][1], [EIGHT]),
        (eight[2][1], [EIGHT]),
    ]


def test_chosen_images_of_a_layout(layout: Layout) -> None:
    done = run("--output", str(layout.path), "--torch", "2.8", "--json")

    assert [image["tag"] for image in json.loads(done.stdout)["images"]] == [EIGHT]
    assert done.stderr.startswith("torchkiln: reading 3 layers, ")


def test_an_image_of_zstd_layers_is_another_in_a_registry_and_the_same_on_a_disk(
    layout: Layout, tmp_path: Path
) -> None:
    store = BlobFolder(tmp_path / "zstd")
    base = store.layer("base", tar_of(files(base=b"base" * 500_000)), pack=program)
    write_image(
        layout.path,
        plan(SEVEN, titles=("base",)),
        [base],
        store.path,
        refs=("v2.7-zstd", f"{SEVEN}-zstd"),
        layer_format="zstd",
    )
    found = told("--output", str(layout.path), "--torch", "2.7")

    assert [image["tag"] for image in found["images"]] == [SEVEN, f"{SEVEN}-zstd"]
    assert [len(one["images"]) for one in found["registry"]["kept"]] == [1, 1, 1]
    assert [len(one["images"]) for one in found["disk"]["kept"]] == [2, 1]


def test_an_image_without_a_name_goes_by_its_digest(layout: Layout) -> None:
    index = json.loads((layout.path / "index.json").read_bytes())
    for entry in index["manifests"]:
        entry.pop("annotations")
    (layout.path / "index.json").write_text(json.dumps(index))

    digests = sorted({entry["digest"] for entry in index["manifests"]})
    assert sorted(image["tag"] for image in told("--output", str(layout.path))["images"]) == digests


def test_what_is_no_layout_is_told(layout: Layout, tmp_path: Path) -> None:
    """With the code that other commands have for it."""
    (tmp_path / "other").mkdir()
    for folder, kind in ((tmp_path / "none", ConfigError), (tmp_path / "other", VerificationFailed)):
        with pytest.raises(kind, match=str(folder)):
            run("--output", str(folder))
    with pytest.raises(NothingSelected, match="none of the selected images"):
        run("--output", str(layout.path), "--torch", "2.3")
    (layout.path / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    with pytest.raises(NothingSelected, match="has no image"):
        run("--output", str(layout.path))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda blob: blob.unlink(), "no such file"),
        (lambda blob: _write(blob, blob.read_bytes() + b"\0"), "size mismatch"),
        (lambda blob: _write(blob, blob.read_bytes()[:-9] + b"\0" * 9), "cannot read layer"),
    ],
    ids=["missing", "longer", "damaged"],
)
def test_a_damaged_layer_is_told(layout: Layout, spoil: Any, sentence: str) -> None:
    spoil(layout.image(EIGHT).layers[1].path)
    with pytest.raises(VerificationFailed, match=sentence):
        run("--output", str(layout.path))


def _write(blob: Path, data: bytes) -> None:
    blob.unlink()  # the store's own file is a hard link to it
    blob.write_bytes(data)


def test_a_layer_of_another_tar_is_told(layout: Layout) -> None:
    """Though it has the length that the manifest says."""
    image = layout.image(EIGHT)
    path = image.layers[1].path
    path.unlink()
    path.write_bytes(b"\0" * image.layers[1].size)
    with pytest.raises(VerificationFailed, match="digest mismatch"):
        run("--output", str(layout.path))
