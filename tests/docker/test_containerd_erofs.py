"""`export erofs` writes the bytes that containerd's own EROFS differ writes for the same layers.

Debian's unstable release has the first containerd with that snapshotter; without it the test is skipped.
Its `layer_content_caches`, from 2.4, is not packaged: that it reads our folder was not tried.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.root import NoEngine, home, made
from tests.erofs_tools import with_mkfs
from tests.needs import needs_mmdebstrap
from tests.roots import entries_of, entry, tar_of, tiny_root
from torchkiln.util.files import mounted_below

pytestmark = [pytest.mark.proof, pytest.mark.network, needs_mmdebstrap]

_DIR = b"5"
_NO_EXPIRY = "--aptopt=Acquire::Check-Valid-Until false"  # a mirror may be late
_CONFIG = """version = 3
root = "{0}/root"
state = "{0}/state"
[grpc]
  address = "{0}/c.sock"
[plugins."io.containerd.differ.v1.erofs"]
  mkfs_options = ["-b4096", "--sort=none", "-zlz4", "-C65536", "-T0", "--mkfs-time"]
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
"""


@dataclass(frozen=True)
class Containerd:
    """A running containerd; its programs are in *programs*."""

    folder: Path
    programs: Path

    def ctr(self, *words: str | Path) -> str:
        """The output of a command of its client."""
        argv = [self.programs / "ctr", "-a", self.folder / "c.sock", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Containerd]:
    with_mkfs(tmp_path / "bin", monkeypatch)
    try:
        root = made(home() / "containerd", "sid", ("containerd", "runc"), "--variant=extract", _NO_EXPIRY)
    except NoEngine as error:
        pytest.skip(str(error))
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "config.toml").write_text(_CONFIG.format(folder))
    argv = [root / "usr/bin/containerd", "-c", folder / "config.toml"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    found = Containerd(folder, root / "usr/bin")
    try:
        end = time.monotonic() + 60
        while not (folder / "c.sock").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        if process.poll() is not None:  # such as one that needs a newer C library
            pytest.skip((folder / "log").read_text()[-600:])
        yield found
    finally:
        process.terminate()
        process.wait(60)
        for mount in sorted(mounted_below(folder), reverse=True):
            subprocess.run(["umount", mount], check=False)


def _layout(folder: Path, tars: list[bytes]) -> Path:
    """A layout of *tars*, uncompressed: containerd makes the UUID from the digest, here the diff_id."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        kind = f"application/vnd.oci.image.{kind}"
        return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(data)}

    layers = [put(tar, "layer.v1.tar") for tar in tars]
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    config: dict[str, object] = {"architecture": "amd64", "os": "linux", "rootfs": rootfs}
    config["config"] = {"Env": ["PATH=/usr/bin:/bin"]}
    document: dict[str, object] = {"schemaVersion": 2, "layers": layers}
    document["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
    document["config"] = put(json.dumps(config).encode(), "config.v1+json")
    named = put(json.dumps(document).encode(), "manifest.v1+json")
    names = {"org.opencontainers.image.ref.name": "t", "io.containerd.image.name": "localhost/t:t"}
    named["annotations"] = names
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def test_our_images_are_those_of_containerd(containerd: Containerd, tmp_path: Path) -> None:
    base = entries_of(tiny_root(tmp_path / "tiny", "cat"))
    lower = [*base, entry("opt", kind=_DIR), entry("opt/old", b"old"), entry("opt/gone", b"gone" * 5000)]
    upper = [entry("opt", kind=_DIR), entry("opt/old", b"new"), entry("opt/.wh.gone")]
    layout = _layout(tmp_path / "layout", [tar_of(lower), tar_of(upper)])
    subprocess.run(["tar", "-cf", tmp_path / "image.tar", "-C", layout, "."], check=True)
    containerd.ctr("image", "import", "--local", "--snapshotter", "erofs", tmp_path / "image.tar")
    argv = [sys.executable, "-m", "torchkiln", "export", "erofs", tmp_path / "out", "t", "--output", layout]
    subprocess.run(argv, check=True, env={**os.environ, "TORCHKILN_CACHE": str(tmp_path / "cache")})
    snapshots = containerd.folder / "root/io.containerd.snapshotter.v1.erofs/snapshots"
    theirs = sorted(path.read_bytes() for path in snapshots.glob("*/layer.erofs"))
    assert len(theirs) == 2
    assert sorted(path.read_bytes() for path in (tmp_path / "out").rglob("*.erofs")) == theirs
    words = ("run", "--rm", "--snapshotter", "erofs", "localhost/t:t", f"t{os.getpid()}")
    assert containerd.ctr(*words, "cat", "/opt/old") == "new"
