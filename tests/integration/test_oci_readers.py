"""Other people's readers take what we write: skopeo, umoci, and docker where an engine answers."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.oci_samples import BlobFolder, Member, digest, files, members_of, plan, tar_of
from torchkiln.nouns import BuiltImage
from torchkiln.oci.archive import write_archive
from torchkiln.oci.layout import open_layout, write_image

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
    """Run a reader; skip, visibly, where it is not installed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed (apt-get install {command[0]})")
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def skopeo_copy(source: str, target: Path) -> None:
    """Copy an image to skopeo's plain folder form; every digest is checked on the way."""
    done = tool("skopeo", "copy", "--insecure-policy", source, f"dir:{target}")
    assert done.returncode == 0, done.stderr


def inflated(path: Path) -> bytes:
    """A layer as skopeo keeps it, by version inflated or compressed anew, as its tar."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


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


def test_skopeo_reads_the_config_as_we_meant_it(built: BuiltImage) -> None:
    """Digest, labels, environment and layers in skopeo's own words."""
    done = tool("skopeo", "inspect", f"oci:{built.layout}:v2.7")
    assert done.returncode == 0, done.stderr

    found = json.loads(done.stdout)

    assert found["Digest"] == built.manifest
    assert found["Layers"] == [layer.digest for layer in built.layers]
    assert found["Labels"]["torchkiln.status"] == "minor-compat"
    assert found["Env"] == ["PATH=/opt/venv/bin:/usr/bin", "LANG=C.UTF-8"]
    assert (found["Architecture"], found["Os"], found["Created"]) == (
        "amd64",
        "linux",
        "2025-06-15T15:06:40Z",
    )


def test_skopeo_copies_the_very_bytes(built: BuiltImage, tmp_path: Path) -> None:
    """From the layout and from an oci-archive: manifest, config and layers keep their digests."""
    layout = open_layout(Path(built.layout))
    write_archive(layout.image(TAG), tmp_path / "a.tar", "oci-archive")
    for number, source in enumerate((f"oci:{built.layout}:{TAG}", f"oci-archive:{tmp_path}/a.tar:{TAG}")):
        target = tmp_path / str(number)
        skopeo_copy(source, target)

        assert digest((target / "manifest.json").read_bytes()) == built.manifest
        blobs = {built.config, *(layer.digest for layer in built.layers)}
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
        assert [digest(inflated(path)) for path in stored] == [layer.diff_id for layer in built.layers]


def test_umoci_unpacks_every_file(built: BuiltImage, tmp_path: Path) -> None:
    """Paths, contents, modes and links as they went in."""
    done = tool("umoci", "unpack", "--rootless", "--image", f"{built.layout}:{TAG}", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    root = tmp_path / "bundle/rootfs"

    for member in (*BASE, *OWN):
        path = root / member.name
        if member.link:
            assert path.readlink() == Path(member.link)
        elif member.name.endswith("/"):
            assert path.is_dir()
        else:
            assert path.read_bytes() == member.data
            assert path.stat().st_mode & 0o777 == member.mode
    assert sum(1 for path in root.rglob("*")) == len(BASE) + len(OWN)


def test_docker_loads_a_docker_archive(built: BuiltImage, tmp_path: Path) -> None:
    """Where an engine answers: under both names, with our config."""
    if tool("docker", "version").returncode != 0:
        pytest.skip("no Docker engine answers")
    image = open_layout(Path(built.layout)).image(TAG)
    names = ["torchkiln-archive-test:a", "torchkiln-archive-test:b"]
    write_archive(image, tmp_path / "a.tar", "docker-archive", names)

    loaded = tool("docker", "load", "--input", tmp_path / "a.tar")
    try:
        assert loaded.returncode == 0, loaded.stderr
        (found,) = json.loads(tool("docker", "image", "inspect", names[1]).stdout)
        assert found["RootFS"]["Layers"] == [layer.diff_id for layer in built.layers]
        assert found["Config"]["WorkingDir"] == "/workspace"
        assert found["Id"] in (built.config, built.manifest)
    finally:
        tool("docker", "image", "rm", *names)
