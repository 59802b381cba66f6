"""`plan sharing` as a user calls it, for the committed locks and for a layout."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.oci_samples import BlobFolder, digest, files, plan, tar_of
from tests.planned import locked, wheel
from tests.zstd_frames import program
from torchkiln.cli.sharing import sharing
from torchkiln.errors import ConfigError, KilnError, NothingSelected, Stale, Unresolvable, VerificationFailed
from torchkiln.lock.lock import save
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.recipe import ImagePython
from torchkiln.oci.layout import Layout, open_layout, write_image
from torchkiln.plan.layers import wheel_layers
from torchkiln.util.places import ROOT

IMAGES = ROOT / "images"
LOCKS = {path.parent.name: path.read_bytes() for path in IMAGES.glob("*-runtime/lock.json")}
RUNTIME = sorted(tag for tag, lock in LOCKS.items() if b'"by_record"' not in lock)
SEVEN, EIGHT = "2.7.1-cuda12.1-cudnn9-runtime", "2.8.0-cuda12.1-cudnn9-runtime"


def run(*arguments: str) -> Result:
    matrix = ["--matrix", str(ROOT / "matrix.yaml")]
    return CliRunner().invoke(sharing, [*matrix, *arguments], catch_exceptions=False)


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def locked_to(images: Path, torch: str, *, without: str = "") -> None:
    """Write a made-up lock of a torch release. Locks differ only in torch; a tar has twice its wheels' size.

    :param without: the title of a layer that the lock does not record.
    """
    cell = locked(torch)
    wheels = [wheel("torch", torch, megabytes=821) if item.name == "torch" else item for item in cell.wheels]
    layers = [
        ImageLayer(
            title=spec.title,
            blob=Blob(
                digest=digest(spec.title.encode()),
                diff_id=digest(f"tar {spec.title}".encode()),
                size=(size := sum(item.size for item in spec.wheels)),
                unpacked=2 * size,
            ),
        )
        for spec in wheel_layers(wheels, python=ImagePython.of_base("3.11.2"))
        if spec.title != without
    ]
    save(images, replace(cell, wheels=tuple(wheels), layers=tuple(layers)))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with two locks, of torch 2.7.1 and 2.8.0."""
    for torch in ("2.7.1", "2.8.0"):
        locked_to(tmp_path, torch)
    return tmp_path


def lines(done: Result) -> list[str]:
    """The lines of stdout, with one space between columns."""
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_all_locked_images_are_counted_by_their_locks() -> None:
    """The base and the layers below it are those in the locks; locks do not record the overlay."""
    found = run_json("--images", str(IMAGES), "--lockable")
    blobs: dict[str, int] = {}
    total = 0
    assert sorted(image["tag"] for image in found["images"]) == RUNTIME
    for image in found["images"]:
        lock = json.loads((IMAGES / image["tag"] / "lock.json").read_bytes())
        recorded = [*lock["layers"], lock["base"]]
        layers = [(item["digest"], item["diff_id"], item["size"], item["unpacked"]) for item in recorded]
        *below, top = [
            (layer["digest"], layer["diff_id"], layer["compressed_bytes"], layer["unpacked_bytes"])
            for layer in image["layers"]
        ]
        assert sorted(below) == sorted(layers)
        assert below[-1] == layers[-1]
        assert 0 < top[2] < 100_000
        sizes = {digest: size for digest, _, size, _ in (*layers, top)}
        assert image["registry"]["bytes"] == sum(sizes.values())
        blobs |= sizes
        total += sum(sizes.values())
    assert (found["registry"]["image_bytes"], found["registry"]["kept_bytes"]) == (total, sum(blobs.values()))
    assert found["registry"]["ratio"] == sum(blobs.values()) / total
    assert found["registry"]["ratio"] < found["disk"]["ratio"] < 1
    assert found["disk"]["unknown_layers"] == found["registry"]["unknown_layers"] == 0


def test_only_locked_cells_are_counted() -> None:
    """Messages count the cells without a lock, and the cells locked by public record: it has no sizes."""
    done = run("--images", str(IMAGES), "--all", "--json")
    by_record = "3 cells are not counted: locked by public record, which has no sizes"
    assert by_record in done.stderr

    usual = run("--json")
    assert json.loads(done.stdout) == json.loads(usual.stdout)
    assert "selected cells are not counted: they have no lock" in done.stderr
    messages = [line for line in usual.stderr.splitlines() if by_record not in line]
    assert all(" unknown size, no lock records it: CUDA 1" in line for line in messages)


def test_a_recorded_layer_counts_for_every_image_with_it() -> None:
    """The devel image's lock records no layers; the layers in the runtime image's lock are known."""
    found = run_json("--images", str(IMAGES), "--torch", "2.7", "--cuda", "12.1", "--flavor", "runtime,devel")
    runtime, devel = found["images"]
    known = [layer for layer in devel["layers"] if layer["digest"]]

    assert json.loads((IMAGES / devel["tag"] / "lock.json").read_bytes())["layers"] == []
    *wheels, base, _overlay = runtime["layers"]
    assert known[: len(wheels)] == wheels
    assert known[len(wheels)] == {**base, "chain_id": None}  # it is above the toolkit, which no lock records
    assert {layer["title"].split(":")[0] for layer in devel["layers"] if not layer["digest"]} == {
        "CUDA 12.1.1"
    }
    assert found["registry"]["ratio"] is None
    assert 0.5 < found["registry"]["known"]["ratio"] < 0.52


def test_chosen_cells_as_tables(two: Path) -> None:
    """A registry stores a layer above two versions of torch once; a host unpacks it twice."""
    done = run("--images", str(two), "--torch", "2.7,2.8", "--cuda", "12.1")

    assert done.stderr == ""
    assert lines(done) == [
        "NO IMAGE LAYERS REGISTRY SHARED WITH OTHER IMAGES",
        f"1 {SEVEN} 11 2.4 GB 1.6 GB 1.6 GB with 1",
        f"2 {EIGHT} 11 2.4 GB 1.6 GB 1.6 GB with 1",
        "",
        "NO IMAGE LAYERS DISK SHARED WITH OTHER IMAGES",
        f"1 {SEVEN} 11 4.9 GB 2.7 GB 2.7 GB with 1",
        f"2 {EIGHT} 11 4.9 GB 2.7 GB 2.7 GB with 1",
        "",
        "COMPRESSED KEPT FOR UNPACKED KEPT ON A DISK FOR LAYER",
        "11.0 MB 1,2 22.0 MB 1,2 CUDA libraries: cuda-cupti 12.6.80, cuda-runtime 12.6.77, cufile 1.11.1.6",
        "393.0 MB 1,2 786.0 MB 1,2 nvidia-cublas-cu12 12.6.4.1",
        "571.0 MB 1,2 1.1 GB 1,2 nvidia-cudnn-cu12 9.5.1.17",
        "201.0 MB 1,2 402.0 MB 1,2 nvidia-nccl-cu12 2.26.2",
        "156.0 MB 1,2 312.0 MB 1,2 triton 3.3.1",
        "33.0 MB 1,2 132.0 MB 1 | 2 packages: numpy 2.3.5, pillow 12.0.0, torchvision 0.22.1, tqdm 4.67.1",
        "14.0 MB 1,2 56.0 MB 1 | 2 dependencies: jupyterlab 4.5.0, pip 25.3",
        "21.0 MB 1,2 84.0 MB 1 | 2 uv 0.9.11",
        "150.0 MB 1,2 1.0 GB 1 | 2 debian12 base (1 package)",
        "",
        "ALL IMAGES KEPT RATIO",
        "registry, compressed 4.7 GB 3.2 GB 0.673",
        "host's disk, unpacked 9.9 GB 7.2 GB 0.730",
    ]


def test_a_layer_that_no_lock_records_is_not_known(two: Path) -> None:
    """Its size is unknown: sums are marked as incomplete and have no ratio. Other images are unaffected."""
    both_images = run_json("--images", str(two))
    locked_to(two, "2.7.1", without="torch 2.7.1")
    done, found = run("--images", str(two)), run_json("--images", str(two))
    seven, eight = found["images"]

    assert done.stderr == "torchkiln: unknown size, no lock records it: torch 2.7.1 (in 1 of 2 images)\n"
    assert lines(done)[1] == f"1 {SEVEN} 11, 1 unknown 1.6 GB + ? 1.6 GB 1.6 GB with 1"
    assert lines(done)[5] == f"1 {SEVEN} 11, 6 unknown 2.7 GB + ? 2.7 GB 2.7 GB with 1"
    assert lines(done)[-2:] == [
        "registry, compressed 3.9 GB + ? 2.4 GB + ? 0.605 of the known sizes",
        "host's disk, unpacked 7.6 GB + ? 4.9 GB + ? 0.650 of the known sizes",
    ]
    assert (seven["registry"]["bytes"], seven["disk"]["bytes"]) == (None, None)
    for place in ("registry", "disk"):
        assert eight[place]["bytes"] == both_images["images"][1][place]["bytes"]
        assert [found[place][key] for key in ("image_bytes", "kept_bytes", "ratio")] == [None] * 3
    at = [layer["title"] for layer in seven["layers"]].index("torch 2.7.1")
    assert {key: value for key, value in seven["layers"][at].items() if value} == {"title": "torch 2.7.1"}
    assert [layer["chain_id"] is None for layer in seven["layers"]] == [False] * at + [True] * (11 - at)


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ((), NothingSelected, "no selected cell has a lock in"),
        (("--torch", "2.7", "--cuda", "12.1"), Stale, "the cell is not locked yet"),
        (("--torch", "2.7,2.8"), NothingSelected, "no selected cell has a lock in"),
        (("--torch", "2.8", "--cuda", "11.7"), Unresolvable, "2.8"),
        (("--torch", "9.9"), ConfigError, "--torch 9.9: not in the matrix"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_without_a_lock(
    arguments: tuple[str, ...], kind: type[KilnError], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=sentence):
        run("--images", str(tmp_path), *arguments)


def test_a_broken_lock_is_an_error(two: Path) -> None:
    lock = two / SEVEN / "lock.json"
    assert '"size": 571000000' in lock.read_text()
    lock.write_text(lock.read_text().replace('"size": 571000000', '"size": 571000001'))

    with pytest.raises(Stale, match=SEVEN):
        run("--images", str(two))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Two images with the same base and top layer; one has another layer between; one has an alias."""
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
    return [(layer["compressed_bytes"], layer["unpacked_bytes"]) for layer in image["layers"]]


def test_a_layouts_images_as_they_were_built(layout: Layout) -> None:
    """An image with two names counts once. Its sizes are those of the layers' files and of their tars."""
    found = run_json("--output", str(layout.path))
    disk = [(item["bytes"], item["images"]) for item in found["disk"]["kept"]]
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


def test_a_zstd_image_differs_in_a_registry_but_not_when_unpacked(layout: Layout, tmp_path: Path) -> None:
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
    found = run_json("--output", str(layout.path), "--torch", "2.7")

    assert [image["tag"] for image in found["images"]] == [SEVEN, f"{SEVEN}-zstd"]
    assert [len(item["images"]) for item in found["registry"]["kept"]] == [1, 1, 1]
    assert [len(item["images"]) for item in found["disk"]["kept"]] == [2, 1]


def test_an_image_without_a_name_is_shown_by_its_digest(layout: Layout) -> None:
    index = json.loads((layout.path / "index.json").read_bytes())
    for entry in index["manifests"]:
        entry.pop("annotations")
    (layout.path / "index.json").write_text(json.dumps(index))

    digests = sorted({entry["digest"] for entry in index["manifests"]})
    assert sorted(image["tag"] for image in run_json("--output", str(layout.path))["images"]) == digests


def test_an_invalid_layout_is_an_error(layout: Layout, tmp_path: Path) -> None:
    """The exit code is the same as that of other commands."""
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
def test_a_damaged_layer_is_an_error(layout: Layout, spoil: Any, sentence: str) -> None:
    spoil(layout.image(EIGHT).layers[1].path)
    with pytest.raises(VerificationFailed, match=sentence):
        run("--output", str(layout.path))


def _write(blob: Path, data: bytes) -> None:
    blob.unlink()  # the store's file is a hard link to it
    blob.write_bytes(data)


def test_a_layer_of_another_tar_is_an_error(layout: Layout) -> None:
    """Even if the layer has the size that the manifest states."""
    image = layout.image(EIGHT)
    path = image.layers[1].path
    path.unlink()
    path.write_bytes(b"\0" * image.layers[1].size)
    with pytest.raises(VerificationFailed, match="digest mismatch"):
        run("--output", str(layout.path))
