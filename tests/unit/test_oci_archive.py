"""Archives: one tar file that is an OCI layout, and Docker's own form too."""

import fcntl
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.oci_samples import BlobFolder, digest, files, plan, tar_of
from torchkiln.errors import BuildFailed
from torchkiln.model.image import BuiltImage
from torchkiln.oci import archive as module
from torchkiln.oci.archive import archive_image, stream_archive, write_archive
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_image
from torchkiln.oci.validate.validate import validate


def build(folder: Path, tag: str = "a") -> BuiltImage:
    """Two images in folder/layout, of which one is archived."""
    store = BlobFolder(folder / "store")
    base = store.layer("base", tar_of(files(base=b"base")))
    write_image(folder / "layout", plan("other"), (base, store.layer("x", tar_of(files(x=b"x")))), store.path)
    own = store.layer("own", tar_of(files(own=b"1" * 3000)))
    return write_image(folder / "layout", plan(tag, titles=("base", "own")), (base, own, base), store.path)


def image(folder: Path) -> ImageOnDisk:
    """The image to archive."""
    build(folder)
    return open_layout(folder / "layout").image("a")


def test_an_oci_archive_is_a_sound_layout_of_one_image(tmp_path: Path) -> None:
    """Unpacked it validates, holds the image under its name, and nothing of its neighbour."""
    wanted = image(tmp_path)
    write_archive(wanted, tmp_path / "a.tar", "oci-archive")
    with tarfile.open(tmp_path / "a.tar") as archive:
        # Debian 12's Python has no extraction filters yet, newer ones demand one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "out")
        names = archive.getnames()

    assert validate(tmp_path / "out") == ()
    assert open_layout(tmp_path / "out").refs() == {"a": wanted.manifest}
    assert names[:2] == ["oci-layout", "index.json"]


def test_a_docker_archive_lists_what_docker_save_lists(tmp_path: Path) -> None:
    """manifest.json names config and layers by paths in the archive; a layer used twice is there once."""
    wanted = image(tmp_path)
    write_archive(
        wanted,
        tmp_path / "a.tar",
        "docker-archive",
        ["kiln:a", "registry.example:5000/x/kiln:b", "me/k:c", "ghcr.example/k:d"],
    )
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
        contents = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}  # type: ignore[union-attr]

    (found,) = json.loads(contents["manifest.json"])

    assert found["RepoTags"] == ["kiln:a", "registry.example:5000/x/kiln:b", "me/k:c", "ghcr.example/k:d"]
    assert digest(contents[found["Config"]]) == wanted.config_digest
    assert [digest(contents[path]) for path in found["Layers"]] == [layer.digest for layer in wanted.layers]
    assert len(names) == len(set(names))
    annotations = [entry["annotations"] for entry in json.loads(contents["index.json"])["manifests"]]
    assert [found["io.containerd.image.name"] for found in annotations] == [
        "docker.io/library/kiln:a",
        "registry.example:5000/x/kiln:b",
        "docker.io/me/k:c",
        "ghcr.example/k:d",
    ]
    assert [found["org.opencontainers.image.ref.name"] for found in annotations] == ["a", "b", "c", "d"]


def test_the_same_image_gives_the_same_archive(tmp_path: Path) -> None:
    """No clock, no owner, no order of folders in it."""
    for folder in ("one", "two"):
        write_archive(image(tmp_path / folder), tmp_path / f"{folder}.tar", "docker-archive", ["kiln:a"])

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_it_is_written_without_seeking(tmp_path: Path) -> None:
    """So that it can go into a pipe."""

    class Pipe(io.BytesIO):
        def seek(self, *_: object) -> int:
            raise OSError("a pipe")

        tell = seek  # type: ignore[assignment]

    pipe = Pipe()
    wanted = image(tmp_path)
    stream_archive(wanted, pipe, "oci-archive")
    write_archive(wanted, tmp_path / "a.tar", "oci-archive")

    assert pipe.getvalue() == (tmp_path / "a.tar").read_bytes()


def test_a_failure_leaves_the_old_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost blob or a full disk: the message names the file, no half archive and no temporary stays."""
    wanted = image(tmp_path)
    target = tmp_path / "out/a.tar"
    write_archive(wanted, target, "oci-archive")
    before = target.read_bytes()
    wanted.layers[1].path.unlink()

    with pytest.raises(BuildFailed, match=r"a\.tar: the archive cannot be written: No such file"):
        write_archive(wanted, target, "oci-archive")

    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["a.tar"]


def test_a_blob_that_changes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header was written with the old size: nothing behind it would be readable."""
    wanted = image(tmp_path)
    size = module.os.fstat

    class Less:
        def __init__(self, found: object) -> None:
            self.st_size = found.st_size - 1  # type: ignore[attr-defined]

    monkeypatch.setattr(module.os, "fstat", lambda number: Less(size(number)))

    with pytest.raises(BuildFailed, match="changed while it was read"):
        write_archive(wanted, tmp_path / "a.tar", "oci-archive")


def test_an_archive_lies_beside_its_layout(tmp_path: Path) -> None:
    """What `build --format` does: named by tag and form, known inside by repository and tags."""
    built = build(tmp_path)

    path = archive_image(built, "docker-archive", repository="pytorch-cuda", tags=("a", "v2.7"))

    assert path == tmp_path / "a.docker-archive.tar"
    with tarfile.open(path) as archive:
        listed = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert listed[0]["RepoTags"] == ["pytorch-cuda:a", "pytorch-cuda:v2.7"]


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    """Gigabytes each; but not what somebody is writing at this moment, who holds a lock on it."""
    target = tmp_path / "out/a.tar"
    write_archive(image(tmp_path), target, "oci-archive")
    dead, alive = (target.with_name(f".a.tar.{pid}.0123abcd") for pid in (12, 13))
    dead.write_bytes(b"half")
    with alive.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        write_archive(image(tmp_path), target, "oci-archive")
        assert sorted(path.name for path in target.parent.iterdir()) == [alive.name, "a.tar"]
