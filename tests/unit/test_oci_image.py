"""Config and manifest of an image, and archives with an image."""

import dataclasses
import fcntl
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oci_samples import ZERO, BlobFolder, digest, files, plan, tar_of
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, BuiltImage, ImageLayer
from torchkiln.oci import archive as module
from torchkiln.oci.archive import archive_image, stream_archive, write_archive
from torchkiln.oci.image import canonical_json, describe
from torchkiln.oci.layout import ImageOnDisk, open_layout, write_image
from torchkiln.oci.validate.validate import validate

LAYERS = (
    ImageLayer(title="base", blob=Blob(digest=digest(b"b"), diff_id=digest(b"B"), size=11, unpacked=33)),
    ImageLayer(
        title="torch 2.7.1", blob=Blob(digest=digest(b"t"), diff_id=digest(b"T"), size=22, unpacked=44)
    ),
)


def test_the_config_matches_the_plan() -> None:
    """Fields have their names in the OCI specification. Docker's health check counts in nanoseconds."""
    found = json.loads(describe(plan(titles=("base", "torch 2.7.1")), LAYERS).config)
    assert found == {
        "architecture": "amd64",
        "os": "linux",
        "created": "2025-06-15T15:06:40Z",
        "config": {
            "Env": ["PATH=/opt/venv/bin:/usr/bin", "LANG=C.UTF-8"],
            "Entrypoint": ["/usr/bin/tini", "--", "/usr/local/bin/entrypoint"],
            "WorkingDir": "/workspace",
            "ExposedPorts": {"8888/tcp": {}, "22/tcp": {}},
            "Volumes": {"/workspace": {}},
            "Labels": {"org.opencontainers.image.version": "2.7.1", "torchkiln.status": "minor-compat"},
            "StopSignal": "SIGTERM",
            "Healthcheck": {
                "Test": ["CMD", "/bin/true"],
                "Interval": 30_000_000_000,
                "Timeout": 5_000_000_000,
                "StartPeriod": 10_000_000_000,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(b"B"), digest(b"T")]},
        "history": [
            {"created": "2025-06-15T15:06:40Z", "created_by": "torchkiln: base"},
            {"created": "2025-06-15T15:06:40Z", "created_by": "torchkiln: torch 2.7.1"},
        ],
    }


def test_the_digest_is_a_golden() -> None:
    """A change of the format changes every image's digest. If that is intended, raise `RECIPE`."""
    golden = "sha256:7700b65129adf03fec1d5bf433c53852bd1d8d39098aaccf00099c0e47968550"
    assert describe(plan(), LAYERS).manifest_digest == golden


def test_names_are_not_in_the_image() -> None:
    """Another tag, other aliases and the unpacked sizes of layers do not change the digest."""
    first = plan("a")
    second = dataclasses.replace(plan("b"), aliases=("latest",))
    assert describe(first, LAYERS) == describe(second, LAYERS)


def test_empty_fields_are_omitted() -> None:
    """Engines omit them, too, when they write a config."""
    bare = plan(
        env=(),
        entrypoint=(),
        cmd=(),
        workdir="",
        ports=(),
        volumes=(),
        labels=(),
        stop_signal="",
        healthcheck=None,
    )
    found = json.loads(describe(bare, ()).config)
    assert found["config"] == {}
    assert found["rootfs"] == {"type": "layers", "diff_ids": []}


@given(epoch=st.integers(0, 4_000_000_000), size=st.integers(0, 1 << 40), title=st.text(max_size=20))
def test_documents_are_canonical(epoch: int, size: int, title: str) -> None:
    """A document that is read and written again has the same bytes."""
    layer = ImageLayer(
        title=title, blob=Blob(digest=Digest(ZERO), diff_id=Digest(ZERO), size=size, unpacked=size)
    )
    documents = describe(dataclasses.replace(plan(), epoch=epoch), (layer,))
    for document in (documents.config, documents.manifest):
        assert canonical_json(json.loads(document)) == document


def build(folder: Path, tag: str = "a") -> BuiltImage:
    """Build two images in folder/layout; the tests archive one of them."""
    store = BlobFolder(folder / "store")
    base = store.layer("base", tar_of(files(base=b"base")))
    write_image(folder / "layout", plan("other"), (base, store.layer("x", tar_of(files(x=b"x")))), store.path)
    own = store.layer("own", tar_of(files(own=b"1" * 3000)))
    return write_image(folder / "layout", plan(tag, titles=("base", "own")), (base, own, base), store.path)


def image(folder: Path) -> ImageOnDisk:
    """The image that the tests archive."""
    build(folder)
    return open_layout(folder / "layout").image("a")


def test_an_oci_archive_is_a_valid_layout_of_one_image(tmp_path: Path) -> None:
    """It contains the image under its name, and no blob of the other image."""
    expected = image(tmp_path)
    write_archive(expected, tmp_path / "a.tar", "oci-archive")
    with tarfile.open(tmp_path / "a.tar") as archive:
        # tarfile's extraction filters: Debian 12's Python has none, newer versions require one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "out")
        names = archive.getnames()
    assert validate(tmp_path / "out") == ()
    assert open_layout(tmp_path / "out").refs() == {"a": expected.manifest}
    assert names[:2] == ["oci-layout", "index.json"]


def test_a_docker_archive_has_the_entries_of_docker_save(tmp_path: Path) -> None:
    """manifest.json has the paths of config and layers; a layer that is used twice is stored once."""
    expected = image(tmp_path)
    write_archive(
        expected,
        tmp_path / "a.tar",
        "docker-archive",
        ["kiln:a", "registry.example:5000/x/kiln:b", "me/k:c", "ghcr.example/k:d"],
    )
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
        contents = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}  # type: ignore[union-attr]
    (found,) = json.loads(contents["manifest.json"])
    assert found["RepoTags"] == ["kiln:a", "registry.example:5000/x/kiln:b", "me/k:c", "ghcr.example/k:d"]
    assert digest(contents[found["Config"]]) == expected.config_digest
    assert [digest(contents[path]) for path in found["Layers"]] == [layer.digest for layer in expected.layers]
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
    """The archive contains no time and no owner. Its order does not depend on the file system."""
    for folder in ("one", "two"):
        write_archive(image(tmp_path / folder), tmp_path / f"{folder}.tar", "docker-archive", ["kiln:a"])
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_an_archive_is_written_without_seeking(tmp_path: Path) -> None:
    """An archive can therefore be written to a pipe."""

    class Pipe(io.BytesIO):
        def seek(self, *_: object) -> int:
            raise OSError("a pipe")

        tell = seek  # type: ignore[assignment]

    pipe = Pipe()
    expected = image(tmp_path)
    stream_archive(expected, pipe, "oci-archive")
    write_archive(expected, tmp_path / "a.tar", "oci-archive")
    assert pipe.getvalue() == (tmp_path / "a.tar").read_bytes()


def test_a_failure_leaves_the_old_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a blob is missing. The message names the archive, and no partial file stays."""
    expected = image(tmp_path)
    target = tmp_path / "out/a.tar"
    write_archive(expected, target, "oci-archive")
    before = target.read_bytes()
    expected.layers[1].path.unlink()
    with pytest.raises(BuildFailed, match=r"a\.tar: the archive cannot be written: No such file"):
        write_archive(expected, target, "oci-archive")
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["a.tar"]


def test_a_blob_that_changes_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tar header states the old size, so everything after the blob would be unreadable."""
    expected = image(tmp_path)
    size = module.os.fstat

    class Less:
        def __init__(self, found: object) -> None:
            self.st_size, self.st_mode = found.st_size - 1, found.st_mode  # type: ignore[attr-defined]

    monkeypatch.setattr(module.os, "fstat", lambda number: Less(size(number)))
    with pytest.raises(BuildFailed, match="changed while it was read"):
        write_archive(expected, tmp_path / "a.tar", "oci-archive")


def test_an_archive_is_beside_its_layout(tmp_path: Path) -> None:
    """As with `build --format`, the file's name has tag and format; image names have repository and tag."""
    built = build(tmp_path)
    path = archive_image(built, "docker-archive", repository="pytorch-cuda", tags=("a", "v2.7"))
    assert path == tmp_path / "a.docker-archive.tar"
    with tarfile.open(path) as archive:
        listed = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
    assert listed[0]["RepoTags"] == ["pytorch-cuda:a", "pytorch-cuda:v2.7"]


def test_leftovers_of_a_killed_writer_are_deleted_by_the_next(tmp_path: Path) -> None:
    """They may have gigabytes. A file that another process writes is locked, and is not deleted."""
    target = tmp_path / "out/a.tar"
    write_archive(image(tmp_path), target, "oci-archive")
    dead, alive = (target.with_name(f".a.tar.{pid}.0123abcd") for pid in (12, 13))
    dead.write_bytes(b"half")
    with alive.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        write_archive(image(tmp_path), target, "oci-archive")
        assert sorted(path.name for path in target.parent.iterdir()) == [alive.name, "a.tar"]
