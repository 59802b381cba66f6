"""`torchkiln cache verify` on a small cache that real builds made."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import company
from tests.cache_scene import Scene, damage, made, scene
from tests.servers.index_server import IndexServer
from tests.unpublished import FakeIndex
from torchkiln.errors import VerificationFailed
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpacked_root
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store

__all__ = ["made", "scene"]

# --- verify -----------------------------------------------------------------------------------------


def test_verify_of_a_valid_cache(scene: Scene) -> None:
    """Every byte is read, and no error is reported."""
    done = scene.run("verify")
    assert (done.exception, "no fault" in done.stdout) == (None, True)
    result = scene.run_json("verify")
    assert result["faults"] == []
    assert result["bytes"] == sum(
        path.stat().st_size for kind in ("blobs", "wheels", "bytecode") for path in scene.files(kind)
    )


def test_a_damaged_layer_and_its_repair(scene: Scene) -> None:
    """Layout and cache share the file: the tag is named, --repair deletes the file, `build` restores both."""
    before = open_layout(scene.layout).image("t").manifest
    damage(torch := scene.torch())
    assert len(validate(scene.layout)) > 0

    for args in ([], ["--repair"]):
        done = scene.run("verify", *args)
        assert isinstance(done.exception, VerificationFailed)
        assert done.exception.exit_code == 12
        assert done.exception.message.endswith(f"these tags use damaged files: t in {scene.layout}")
        assert "build these tags again" in done.exception.hint
        assert f"{torch.relative_to(scene.cache)}: checksum mismatch (sha256 is" in done.stdout
    assert len(scene.files("blobs")) == 4
    assert scene.build() == before
    assert validate(scene.layout) == ()
    assert scene.run("verify").exception is None


def test_damage_in_an_unregistered_layout(scene: Scene) -> None:
    """The message says that an unknown layout has a hard link to the damaged file."""
    shutil.rmtree(scene.cache / "records" / "layouts")
    damage(scene.torch())
    done = scene.run("verify", "--repair")
    assert isinstance(done.exception, VerificationFailed)
    assert done.exception.message.endswith("an unknown layout")


def test_a_damaged_wheel_is_downloaded_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """--repair downloads it from the configured index; without one, --repair only deletes it."""
    scene.lock()
    wheel = next(path for path in scene.files("wheels") if path.name.startswith("torch"))
    content = wheel.read_bytes()
    damage(wheel)
    assert isinstance(scene.run("verify").exception, VerificationFailed)
    with IndexServer() as server:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", server.url("simple"))
        failed = scene.run("verify", "--repair")
        assert isinstance(failed.exception, VerificationFailed)
        assert "deleted, but it cannot be downloaded again" in failed.stdout
        assert not wheel.exists()

        server.files["simple", "torch", wheel.name] = content
        wheel.parent.mkdir(exist_ok=True)
        wheel.write_bytes(content[:-1] + b"!")
        mended = scene.run("verify", "--repair")
    assert (mended.exception, "downloaded again" in mended.stdout) == (None, True)
    assert wheel.read_bytes() == content


def break_pack(scene: Scene) -> None:
    damage(scene.files("bytecode")[0])


def break_page(scene: Scene) -> None:
    Store(scene.cache).put_record("pages", "x", {})
    (scene.cache / "records/pages/x.json").unlink()
    (scene.cache / "records/pages/x.json").write_text("{")


def break_record(scene: Scene) -> None:
    path = scene.files("records/layers")[0]
    result = json.loads(path.read_bytes())
    path.unlink()
    path.write_text(json.dumps({**result, "size": 1}))


def lose_blob(scene: Scene) -> None:
    scene.torch().unlink()


def break_root(scene: Scene) -> None:
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    root = unpacked_root(image.manifest, layers, Store(scene.cache))
    (root / "etc/os-release").unlink()
    marker = scene.cache / "records" / "roots" / f"{root.name}.json"
    os.utime(marker, (0, 0))


@pytest.mark.parametrize(
    ("breaks", "result"),
    [
        (break_pack, "the hash of the pack does not match"),
        (break_page, "x.json: invalid JSON"),
        (break_record, "its record says 1 bytes"),
        (lose_blob, "refers to a missing blob"),
        (break_root, " bytes; expected "),
    ],
)
def test_other_faults_are_found_and_repaired(
    breaks: Callable[[Scene], None], result: str, scene: Scene
) -> None:
    """Exit code 12; --repair deletes the files, then no fault is left, and the next build is correct."""
    before = open_layout(scene.layout).image("t").manifest
    breaks(scene)
    found = scene.run("verify")
    assert isinstance(found.exception, VerificationFailed)
    assert result in found.stdout
    scene.run("verify", "--repair")
    assert scene.run_json("verify")["faults"] == []
    assert scene.build() == before
    assert validate(scene.layout) == ()


# --- across file systems ----------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    folder = Path("/dev/shm") / f"torchkiln-{os.getpid()}"
    folder.mkdir()
    if folder.stat().st_dev == tmp_path.stat().st_dev:
        folder.rmdir()
        pytest.skip("/dev/shm is on the same file system as the temporary folder; this test requires two")
    yield folder
    shutil.rmtree(folder)


def test_a_copy_in_a_layout_is_replaced_when_it_was_touched(scene: Scene, elsewhere: Path) -> None:
    """If the layout is on another file system, `build` copies a file again only if it has changed."""
    index = FakeIndex([])
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    copy = elsewhere / "dist/blobs/sha256" / scene.torch().name
    inode = copy.stat().st_ino
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    assert copy.stat().st_ino == inode
    damage(copy)
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    assert validate(elsewhere / "dist") == ()
    assert scene.run("verify").exception is None
