"""Images are written to a layout and read by their names; invalid layouts are errors."""

import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oci_samples import BlobFolder, digest, files, plan, tar_of
from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import BuiltImage
from torchkiln.oci import layout as module
from torchkiln.oci.layout import open_layout, prune, write_image
from torchkiln.oci.validate.validate import validate


def build(folder: Path, tag: str = "a", *, content: bytes = b"x", refs: tuple[str, ...] = ()) -> BuiltImage:
    """Write an image with one shared layer and one layer of its own to folder/layout."""
    store = BlobFolder(folder / "store")
    layers = (
        store.layer("base", tar_of(files(base=b"base"))),
        store.layer("own", tar_of(files(own=content))),
    )
    return write_image(folder / "layout", plan(tag, titles=("base", "own")), layers, store.path, refs=refs)


def blobs(folder: Path) -> set[str]:
    """The names of the files in folder/layout/blobs/sha256."""
    return {path.name for path in (folder / "layout/blobs/sha256").iterdir()}


def test_a_written_image_reads_back(tmp_path: Path) -> None:
    """Name, digests, sizes and config are the same as written."""
    built = build(tmp_path)
    found = open_layout(tmp_path / "layout").image("a")
    assert (found.ref, found.manifest, found.config_digest) == ("a", built.manifest, built.config)
    assert [(layer.digest, layer.diff_id, layer.size) for layer in found.layers] == [
        (layer.blob.digest, layer.blob.diff_id, layer.blob.size) for layer in built.layers
    ]
    assert found.config["config"]["WorkingDir"] == "/workspace"
    assert digest(found.layers[1].path.read_bytes()) == built.layers[1].blob.digest
    assert found == open_layout(tmp_path / "layout").image()
    assert found == open_layout(tmp_path / "layout").image(built.manifest)


def test_layers_are_hard_links_into_the_store(tmp_path: Path) -> None:
    """The disk stores a layer only once."""
    built = build(tmp_path)
    path = open_layout(tmp_path / "layout").blob(built.layers[0].blob.digest)
    assert path.samefile(BlobFolder(tmp_path / "store").path(built.layers[0].blob.digest))


def test_across_file_systems_layers_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hard links are not possible there. The copy has the same bytes, and no temporary file stays."""

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    built = build(tmp_path)
    path = open_layout(tmp_path / "layout").blob(built.layers[0].blob.digest)
    assert digest(path.read_bytes()) == built.layers[0].blob.digest
    assert path.stat().st_nlink == 1
    assert len(blobs(tmp_path)) == 4


def test_the_layout_does_not_depend_on_the_order_of_builds(tmp_path: Path) -> None:
    """Images written in another order give the same files, byte for byte."""
    for order in ("ab", "ba"):
        for tag in order:
            build(tmp_path / order, tag, content=tag.encode())
    first, second = tmp_path / "ab/layout", tmp_path / "ba/layout"
    assert (first / "index.json").read_bytes() == (second / "index.json").read_bytes()
    assert blobs(tmp_path / "ab") == blobs(tmp_path / "ba")


def test_aliases_are_written_on_request(tmp_path: Path) -> None:
    """With `refs`, one manifest gets several names; without, only the tag."""
    built = build(tmp_path, "a", refs=("a", "v2.7", "latest"))
    assert open_layout(tmp_path / "layout").refs() == dict.fromkeys(("a", "latest", "v2.7"), built.manifest)
    assert built.ref == "a"


def test_replacing_a_name_deletes_its_blobs(tmp_path: Path) -> None:
    """A blob that another image uses stays."""
    build(tmp_path, "a", content=b"1")
    neighbour = build(tmp_path, "b", content=b"2")
    replaced = build(tmp_path, "a", content=b"3")
    layout = open_layout(tmp_path / "layout")
    assert layout.refs() == {"a": replaced.manifest, "b": neighbour.manifest}
    assert len(blobs(tmp_path)) == 3 + 2 * 2
    assert all(layer.path.is_file() for name in "ab" for layer in layout.image(name).layers)


def test_nothing_is_deleted_beside_an_unreadable_manifest(tmp_path: Path) -> None:
    """The unreadable manifest may reference any blob. The new image is written as usual."""
    build(tmp_path, "a", content=b"1")
    broken = build(tmp_path, "b", content=b"2")
    open_layout(tmp_path / "layout").blob(broken.manifest).write_text("{}")
    before = blobs(tmp_path)
    built = build(tmp_path, "a", content=b"3")
    assert before < blobs(tmp_path)
    assert open_layout(tmp_path / "layout").image("a").manifest == built.manifest
    with pytest.raises(VerificationFailed, match="digest mismatch"):
        prune(tmp_path / "layout")


def test_prune_deletes_only_unneeded_blobs(tmp_path: Path) -> None:
    """Unused blobs and temporary files of ended processes are deleted; the freed bytes are returned."""
    build(tmp_path)
    before = blobs(tmp_path)
    (tmp_path / "layout/blobs/sha256" / ("f" * 64)).write_bytes(b"stray")
    (tmp_path / "layout/.index.json.0123abcd").write_bytes(b"half")
    assert prune(tmp_path / "layout") == 9
    assert blobs(tmp_path) == before
    assert not (tmp_path / "layout/.index.json.0123abcd").exists()


@pytest.mark.parametrize("stop_at", range(4))
def test_an_interrupted_write_leaves_the_old_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    """After any interruption, the old index and image are complete, and the next build succeeds."""
    old = build(tmp_path, "a", content=b"1")
    done = 0
    replace = os.replace

    def fail_later(source: Path, target: Path) -> None:
        nonlocal done
        if done == stop_at:
            raise KeyboardInterrupt
        done += 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
        patch.setattr(module.os, "replace", fail_later)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, "a", content=b"2")
    assert open_layout(tmp_path / "layout").refs() == {"a": old.manifest}
    assert all(layer.path.is_file() for layer in open_layout(tmp_path / "layout").image("a").layers)
    assert not [path for path in (tmp_path / "layout").rglob(".*") if path.name != ".lock"]
    again = build(tmp_path, "a", content=b"2")
    assert open_layout(tmp_path / "layout").image("a").manifest == again.manifest


def test_leftovers_of_a_killed_writer_are_deleted_by_the_next(tmp_path: Path) -> None:
    """They are beside index.json and among the blobs."""
    layout = tmp_path / "layout"
    build(tmp_path, "a")
    left = [layout / ".index.json.0123abcd", layout / "blobs/sha256" / f".{'0' * 64}.0123abcd"]
    for path in left:
        path.write_text("{")
    build(tmp_path, "b")
    assert [path for path in left if path.exists()] == []


def test_a_layer_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    """From a truncated blob in the store, no image and no name is written."""
    store = BlobFolder(tmp_path / "store")
    layer = store.layer("torch 2.7.1", tar_of(files(a=b"a")))
    store.path(layer.blob.digest).write_bytes(b"short")
    with pytest.raises(BuildFailed, match=r"'torch 2\.7\.1'.*is missing or truncated"):
        write_image(tmp_path / "layout", plan("a"), (layer,), store.path)
    assert open_layout(tmp_path / "layout").refs() == {}


def test_a_blob_of_the_wrong_size_is_replaced(tmp_path: Path) -> None:
    """The next build replaces the layout's truncated blob; the blob in the store is not changed."""
    built = build(tmp_path)
    path = open_layout(tmp_path / "layout").blob(built.layers[0].blob.digest)
    path.unlink()
    path.write_bytes(b"half")
    build(tmp_path)
    assert digest(path.read_bytes()) == built.layers[0].blob.digest


def test_an_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    build(tmp_path, "2.7.1-cuda12.1-runtime")
    with pytest.raises(ConfigError, match=r"no such image: '2\.7\.1-cuda12\.2-runtime'") as caught:
        open_layout(tmp_path / "layout").image("2.7.1-cuda12.2-runtime")
    assert caught.value.hint == "did you mean 2.7.1-cuda12.1-runtime?"


def test_several_images_require_a_name(tmp_path: Path) -> None:
    """The error message lists the names."""
    build(tmp_path, "a", content=b"1")
    build(tmp_path, "b", content=b"2")
    with pytest.raises(ConfigError) as caught:
        open_layout(tmp_path / "layout").image()
    assert "images: a, b" in caught.value.hint


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """For example, `--output $HOME` must not make the home folder a layout."""
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout/thesis.tex").write_text("years")
    with pytest.raises(VerificationFailed, match="is not empty and not an OCI layout"):
        build(tmp_path)
    assert {path.name for path in (tmp_path / "layout").iterdir()} <= {"thesis.tex", ".lock"}


@given(
    contents=st.lists(st.binary(max_size=200), min_size=1, max_size=4, unique=True),
    tag=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,40}", fullmatch=True),
)
def test_every_image_round_trips(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], tag: str
) -> None:
    """The image is read with the same layers in the same order, the same tag and the same bytes."""
    folder = tmp_path_factory.mktemp("round")
    store = BlobFolder(folder / "store")
    layers = [
        store.layer(f"layer {number}", tar_of(files(name=data))) for number, data in enumerate(contents)
    ]
    built = write_image(folder / "layout", plan(tag), layers, store.path)
    found = open_layout(folder / "layout").image(tag)
    assert found.manifest == built.manifest == Digest(digest(found.manifest_path.read_bytes()))
    assert [layer.diff_id for layer in found.layers] == [layer.blob.diff_id for layer in layers]
    assert [digest(layer.path.read_bytes()) for layer in found.layers] == [
        layer.blob.digest for layer in layers
    ]


def build_many(folder: Path, name: str, rounds: int) -> None:
    """Write images and move a name; the test runs this in several processes."""
    for number in range(rounds):
        build(folder, f"{name}{number}", content=f"{name}{number}".encode())
        build(folder, f"{name}-moves", content=f"{name} moves {number}".encode())


def test_two_writers_keep_each_others_names(tmp_path: Path) -> None:
    """Processes that write, re-tag and prune at the same time lose no name and no blob."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=build_many, args=(tmp_path, name, 5)) for name in "xy"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    expected = {f"{name}{number}" for name in "xy" for number in range(5)} | {"x-moves", "y-moves"}
    assert set(open_layout(tmp_path / "layout").refs()) == expected
    assert validate(tmp_path / "layout") == ()
