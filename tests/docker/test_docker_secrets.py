"""`build --engine docker --base REF` with a private archive: secrets are stored nowhere."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive_proxy import PrivateArchive, private_archive
from tests.docker.scene import NAME, Scene
from tests.programs import run_program

pytestmark = pytest.mark.network

USER, PASSWORD, INDEX_PASSWORD = "kiln-user", "kiln-archive-password", "kiln-index-password"
REDUCED = "torchkiln-test-reduced:1"


@pytest.fixture(scope="module")
def upstream(scene: Scene) -> str:
    """Make an image of the base without nano and apt sources; returns the URL of the base's archive."""
    assert scene.kiln("--load", "--quiet").returncode == 0
    sources = scene.docker("run", "--rm", "--entrypoint", "cat", NAME, "/etc/apt/sources.list")
    dockerfile = (
        f"FROM {NAME}\nUSER root\nENTRYPOINT []\n"
        "RUN dpkg --purge --force-depends nano && : >/etc/apt/sources.list\n"
    )
    run_program(
        ["docker", "buildx", "build", "--load", "-t", REDUCED, "-"],
        input=dockerfile,
        env=dict(scene.environ),
        check=True,
    )
    return next(word for word in sources.split() if word.startswith("http")).rstrip("/")


@pytest.fixture(scope="module")
def archive(
    scene: Scene, upstream: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivateArchive]:
    (bridge,) = json.loads(scene.docker("network", "inspect", "bridge"))
    host = bridge["IPAM"]["Config"][0]["Gateway"]
    with private_archive(upstream, host, f"{USER}:{PASSWORD}", tmp_path_factory.mktemp("archive")) as found:
        yield found


def test_without_the_secrets_the_package_is_not_found(scene: Scene, upstream: str) -> None:
    ran = scene.kiln("--engine", "docker", "--base", REDUCED)

    assert ran.returncode == 6
    assert re.search(
        r"E: (Unable to locate package nano|Package 'nano' has no installation candidate)", ran.stderr
    )


def test_mirror_password_and_ca_are_used_and_stored_nowhere(
    scene: Scene, archive: PrivateArchive, tmp_path: Path
) -> None:
    """No layer (even as a deleted file), history, config, output or folder of torchkiln has the secrets."""
    ran = scene.kiln(
        "--engine",
        "docker",
        "--base",
        REDUCED,
        TORCHKILN_DEBIAN_MIRROR=archive.address,
        SSL_CERT_FILE=str(archive.ca),
        PIP_INDEX_URL=f"https://u:{INDEX_PASSWORD}@127.0.0.1:9/simple",
    )
    assert ran.returncode == 0, ran.stderr
    assert any("/nano_" in path for path in archive.requested)
    assert scene.docker("run", "--rm", "--entrypoint", "nano", NAME, "--version")

    secrets = {
        "user": USER,
        "password": PASSWORD,
        "index password": INDEX_PASSWORD,
        "address": archive.address.rpartition("@")[2],
        "CA": archive.ca.read_text().splitlines()[3],
    }
    everything = {
        "diagnostics": (ran.stdout + ran.stderr).encode(),
        "history": scene.docker("history", "--no-trunc", NAME).encode(),
        "config": scene.docker("image", "inspect", NAME).encode(),
        **saved(scene, tmp_path / "image.tar"),
    }
    layers = [name for name in everything if name.startswith("blobs/")]
    assert len(layers) > 8
    assert [
        f"{what} in {where}"
        for where, content in everything.items()
        for what, secret in secrets.items()
        if secret.encode() in content
    ] == []
    assert list((scene.cache / "tmp").iterdir()) == []


def saved(scene: Scene, place: Path) -> dict[str, bytes]:
    """Every blob of the image that `docker save` writes, with uncompressed layers."""
    scene.docker("save", "--output", str(place), NAME)
    with tarfile.open(place) as tar:
        members = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        read = {name: stream.read() for name, stream in members.items() if stream}
    place.unlink()
    return {
        name: gzip.GzipFile(fileobj=io.BytesIO(data)).read() if data[:2] == b"\x1f\x8b" else data
        for name, data in read.items()
    }
