"""Other programs read torchkiln's images correctly: each file, and the image's config.

tests/conformance.py makes an image with difficult files and its expected tree. tests/readers.py runs readers.
"""

import gzip
import json
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import conformance
from tests.conformance import Conformance
from tests.needs import tool as needed
from tests.oci_samples import BlobFolder, Member, digest, files, members_of, plan, tar_of
from tests.programs import run_program
from tests.readers import READERS, CannotRead, Reader
from tests.trees import differences
from torchkiln.model.layer import BuiltImage
from torchkiln.oci.archive import write_archive
from torchkiln.oci.layout import open_layout, write_image
from torchkiln.oci.validate.validate import validate
from torchkiln.util.places import ROOT

LONG = "n" * 140
BASE = (
    *files(etc__motd=b"hello\n", usr__bin__tool=b"#!/bin/sh\n"),
    Member(name="usr/bin/alias", link="tool"),
)
OWN = (
    Member(name="opt/"),
    Member(name=f"opt/{LONG}/"),
    Member(name=f"opt/{LONG}/{LONG}.py", data=b"x = 1\n", mode=0o755),
    Member(name="opt/é.txt", data=bytes(100_000)),
)
TAG = "2.7.1-cuda12.1-runtime"


def tool(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a reader; skip if it is not installed."""
    needed(str(command[0]))
    return run_program(list(map(str, command)))


def skopeo_copy(source: str, target: Path) -> None:
    """Copy an image to skopeo's `dir:` format; skopeo checks every digest."""
    done = tool("skopeo", "copy", "--insecure-policy", source, f"dir:{target}")
    assert done.returncode == 0, done.stderr


def inflated(path: Path) -> bytes:
    """The uncompressed tar of a layer that skopeo stored. Some versions of skopeo store it compressed."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


# --- every file of a difficult image ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    """The image with difficult cases."""
    return conformance.make(tmp_path_factory.mktemp("conformance"))


def here(reader: Reader) -> None:
    """Skip if *reader* cannot run."""
    if missing := reader.missing():
        pytest.skip(missing)


@pytest.mark.parametrize(
    "reader", [reader for reader in READERS if reader.many_members], ids=lambda reader: reader.name
)
def test_readers_unpack_the_same_tree(reader: Reader, images: Conformance, tmp_path: Path) -> None:
    """Layers of many gzip members: all paths, modes, sizes, contents, links and times are correct."""
    here(reader)

    assert differences(images.tree, reader.read(images.image, tmp_path)) == []


@pytest.mark.parametrize(
    "reader", [reader for reader in READERS if not reader.many_members], ids=lambda reader: reader.name
)
def test_readers_that_stop_at_the_first_member(reader: Reader, images: Conformance, tmp_path: Path) -> None:
    """If this fails because a new version reads all members, update docs/layer-formats.md."""
    here(reader)

    with pytest.raises(CannotRead):
        reader.read(images.image, tmp_path)


def test_the_expected_tree_has_the_files_of_the_wheels(images: Conformance) -> None:
    """It agrees with the wheels' specifications, and contains the difficult cases."""
    wheels = conformance.of_the_wheels()

    assert differences(wheels, {path: entry for path, entry in images.tree.items() if path in wheels}) == []
    assert max(map(len, images.tree)) > 300
    assert len(images.tree) > 700
    assert {entry.kind for entry in images.tree.values()} == {"file", "folder", "link"}
    assert sum(path.endswith(".pyc") for path in images.tree) > 200


def members(blob: Path) -> int:
    """The number of gzip members, by Python's zlib."""
    data, count = blob.read_bytes(), 0
    while data:
        inflater = zlib.decompressobj(31)
        inflater.decompress(data)
        assert inflater.eof
        data, count = inflater.unused_data, count + 1
    return count


def test_layers_have_many_members(images: Conformance) -> None:
    """The image is valid, and its layers have as many gzip members as these tests need."""
    assert max(members(layer) for layer in images.image.layers) > 400
    assert validate(images.image.layout) == ()


# --- the image's own documents ------------------------------------------------------------------------


@pytest.fixture
def built(tmp_path: Path) -> BuiltImage:
    """An image of two layers, the second a gzip of fifty members, under two names."""
    store = BlobFolder(tmp_path / "store")
    layers = (
        store.layer("base", tar_of(BASE)),
        store.layer("own", tar_of(OWN), pack=lambda tar: members_of(tar, 50)),
    )
    return write_image(
        tmp_path / "layout", plan(TAG, titles=("base", "own")), layers, store.path, refs=(TAG, "v2.7")
    )


def test_skopeo_reads_the_config_correctly(built: BuiltImage) -> None:
    """Digest, labels, environment and layers in the output of `skopeo inspect`."""
    done = tool("skopeo", "inspect", f"oci:{built.layout}:v2.7")
    assert done.returncode == 0, done.stderr

    found = json.loads(done.stdout)

    assert found["Digest"] == built.manifest
    assert found["Layers"] == [layer.blob.digest for layer in built.layers]
    assert found["Labels"]["torchkiln.status"] == "minor-compat"
    assert found["Env"] == ["PATH=/opt/venv/bin:/usr/bin", "LANG=C.UTF-8"]
    assert (found["Architecture"], found["Os"], found["Created"]) == (
        "amd64",
        "linux",
        "2025-06-15T15:06:40Z",
    )


def test_skopeo_copies_the_same_bytes(built: BuiltImage, tmp_path: Path) -> None:
    """From the layout and from an oci-archive: manifest, config and layers keep their digests."""
    layout = open_layout(Path(built.layout))
    write_archive(layout.image(TAG), tmp_path / "a.tar", "oci-archive")
    for number, source in enumerate((f"oci:{built.layout}:{TAG}", f"oci-archive:{tmp_path}/a.tar:{TAG}")):
        target = tmp_path / str(number)
        skopeo_copy(source, target)

        assert digest((target / "manifest.json").read_bytes()) == built.manifest
        blobs = {built.config, *(layer.blob.digest for layer in built.layers)}
        assert {digest((target / blob.removeprefix("sha256:")).read_bytes()) for blob in blobs} == blobs


def test_skopeo_reads_a_docker_archive(built: BuiltImage, tmp_path: Path) -> None:
    """By each of its names; the config keeps its digest, the layers are inflated to their diff_ids."""
    image = open_layout(Path(built.layout)).image(TAG)
    write_archive(image, tmp_path / "a.tar", "docker-archive", ["pytorch-cuda:a", "pytorch-cuda:v2.7"])
    for tag in ("a", "v2.7"):
        skopeo_copy(f"docker-archive:{tmp_path}/a.tar:pytorch-cuda:{tag}", tmp_path / tag)

        manifest = json.loads((tmp_path / tag / "manifest.json").read_bytes())
        assert manifest["config"]["digest"] == built.config
        stored = [tmp_path / tag / entry["digest"].removeprefix("sha256:") for entry in manifest["layers"]]
        assert [digest(inflated(path)) for path in stored] == [layer.blob.diff_id for layer in built.layers]


def test_docker_loads_a_docker_archive(built: BuiltImage, tmp_path: Path, engine: Mapping[str, str]) -> None:
    """A real engine has the image under both names, with its config."""
    image = open_layout(Path(built.layout)).image(TAG)
    names = ["torchkiln-archive-test:a", "torchkiln-archive-test:b"]
    write_archive(image, tmp_path / "a.tar", "docker-archive", names)

    def docker(*arguments: str | Path) -> str:
        return run_program(["docker", *arguments], env=engine, check=True).stdout

    docker("load", "--input", tmp_path / "a.tar")
    try:
        (found,) = json.loads(docker("image", "inspect", names[1]))
        assert found["RootFS"]["Layers"] == [layer.blob.diff_id for layer in built.layers]
        assert found["Config"]["WorkingDir"] == "/workspace"
        assert found["Id"] in (built.config, built.manifest)
    finally:
        docker("image", "rm", *names)


def test_the_documents_list_the_tested_readers() -> None:
    """A row per reader in docs/layer-formats.md; `tools/readers.py` writes them."""
    page = (ROOT / "docs" / "layer-formats.md").read_text().split("readers: generated")[1].split("<!--")[0]
    cells = [line.replace(r"\|", "/").split("|")[1:-1] for line in page.splitlines() if line[:1] == "|"][2:]
    rows = [[cell.strip() for cell in row] for row in cells]

    assert [(name, verdict == "yes") for name, _, verdict in rows] == [
        (reader.name.replace("|", "/"), reader.many_members) for reader in READERS
    ]
