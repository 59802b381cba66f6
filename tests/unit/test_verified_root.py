"""An unpacked image is compared with its layers before each use, and unpacked again if it differs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.listeners import Lines
from tests.roots import entry, layer, minimal_layout
from torchkiln.errors import BuildFailed
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes import verified_root
from torchkiln.runtimes.image_root import layers_of, unpacked, verified
from torchkiln.runtimes.layer_indexes import keep_index, kept_index, kept_tree
from torchkiln.runtimes.rootfs import using
from torchkiln.runtimes.verified_root import differences
from torchkiln.store.store import Store

DIR, LINK, HARD = b"5", b"2", b"1"


@dataclass(frozen=True)
class Scene:
    """A small image, and a cache into which it is unpacked."""

    image: ImageOnDisk
    store: Store
    root: Path

    def verify(self) -> list[str]:
        """Verify the unpacked image, and return the printed lines."""
        lines = Lines()
        tree, when, root = verified(self.image, self.store, lines)
        assert root == "unpacked"
        assert {"usr/bin/tool", "usr/lib", "etc/link"} < tree.keys()
        assert when.endswith("Z")
        assert (self.root / "usr/bin/tool").read_bytes() == b"tool"
        return lines.lines

    def age(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on, every file counts as old, as in a cache that was not changed for a while."""
        monkeypatch.setattr(verified_root, "_RECENT_NS", -(10**12))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    lower = layer(
        tmp_path,
        *(entry("usr", kind=DIR), entry("usr/bin", kind=DIR), entry("usr/bin/tool", b"tool")),
        *(entry("usr/bin/same", kind=HARD, to="usr/bin/tool"), entry("etc/link", kind=LINK, to="../usr")),
        entry("usr/bin/old", b"old"),
    )
    upper = layer(tmp_path, entry("usr/lib/module.py", b"x = 1\n", mode=0o644), entry("usr/bin/old", b"new"))
    layout = minimal_layout(tmp_path / "dist", [lower, upper], {}, "t")
    image = open_layout(layout).image("t")
    store = Store(tmp_path / "cache")
    return Scene(image, store, unpacked(image, store, Lines()))


def test_the_unpacked_files_equal_those_of_the_layers(scene: Scene) -> None:
    assert scene.verify() == []


def _write(root: Path) -> None:
    status = (root / "usr/bin/tool").stat()
    (root / "usr/bin/tool").write_bytes(b"Tool")
    os.utime(root / "usr/bin/tool", ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace_by_a_link(root: Path) -> None:
    (root / "usr/bin/tool").unlink()
    (root / "usr/bin/tool").symlink_to("old")


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "byte": (_write, "usr/bin/tool: its content differs"),
    "longer": (lambda root: (root / "usr/bin/old").write_bytes(b"longer"), "usr/bin/old: has 6 bytes"),
    "mode": (lambda root: (root / "usr/lib/module.py").chmod(0o4755), "module.py: its mode is 4755"),
    "mode of a folder": (lambda root: (root / "usr/bin").chmod(0o777), "usr/bin: its mode is 0777"),
    "mode of a folder without an entry": (lambda root: (root / "etc").chmod(0o777), "etc: its mode is 0777"),
    "added": (lambda root: (root / "usr/lib/x.pth").write_bytes(b""), "usr/lib/x.pth: is not in the image"),
    "added folder": (lambda root: (root / "opt").mkdir(), "opt: is not in the image"),
    "removed": (lambda root: (root / "usr/bin/same").unlink(), "usr/bin/same: is missing"),
    "a link for a file": (_replace_by_a_link, "usr/bin/tool: is not a file"),
    "target": (
        lambda root: ((root / "etc/link").unlink(), (root / "etc/link").symlink_to("/")),
        "etc/link: is a link to '/', expected '../usr'",
    ),
    "time": (lambda root: os.utime(root / "usr/lib/module.py", (1, 1)), "module.py: its time is 1"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tree_that_differs_is_found_and_made_again(scene: Scene, name: str) -> None:
    tamper, fault = TAMPERED[name]
    assert scene.verify() == []  # this records the hashes
    tamper(scene.root)
    [line] = scene.verify()
    assert line.startswith("the unpacked image differs from its layers and is unpacked again: ")
    assert fault in line
    assert scene.verify() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes the owner of a file")
def test_another_owner_is_found(scene: Scene) -> None:
    os.chown(scene.root / "usr/bin/old", 1234, 0)
    assert "usr/bin/old: its owner is 1234:0, expected 0:0" in scene.verify()[0]


def _index_file(scene: Scene, number: int) -> Path:
    key = scene.image.layers[number].diff_id.removeprefix("sha256:")
    return scene.store.root / "records" / "contents" / f"{key}.json"


def _swap(scene: Scene) -> None:
    one, other = _index_file(scene, 0), _index_file(scene, 1)
    first, second = one.read_bytes(), other.read_bytes()
    for path, data in ((one, second), (other, first)):
        path.unlink()
        path.write_bytes(data)


def _unsign(scene: Scene) -> None:
    path = _index_file(scene, 1)
    envelope = json.loads(path.read_bytes())
    envelope["signatures"][0]["sig"] = "AAAA" + envelope["signatures"][0]["sig"][4:]
    path.unlink()
    path.write_text(json.dumps(envelope))


def _sign_with_another_key(scene: Scene) -> None:
    index = kept_index(scene.store, scene.image.layers[1].diff_id)
    assert index is not None
    key = scene.store.root / "keys" / "machine.pem"
    mine = key.read_bytes()
    key.unlink()
    keep_index(scene.store, scene.image.layers[1].diff_id, index)
    key.write_bytes(mine)


@pytest.mark.parametrize(
    "change",
    [lambda scene: _index_file(scene, 0).unlink(), _swap, _unsign, _sign_with_another_key],
    ids=["missing", "swapped", "unsigned", "of another machine"],
)
def test_an_index_without_this_machines_signature_for_the_image_is_ignored(
    scene: Scene, change: Callable[[Scene], None]
) -> None:
    (scene.root / "usr/bin/planted").write_bytes(b"")
    change(scene)
    assert kept_tree(scene.store, layers_of(scene.image)) is None
    [line] = scene.verify()
    assert "its list of files is missing or not signed by this machine's key" in line
    assert not (scene.root / "usr/bin/planted").exists()
    assert scene.verify() == []


def test_a_known_file_is_not_read_again_unless_its_ctime_differs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.age(monkeypatch)
    tree = kept_tree(scene.store, layers_of(scene.image))
    assert tree is not None
    first = verified_root.load_hashes(scene.store, scene.root)
    assert differences(scene.root, tree, first) == []
    assert first.read == 4
    verified_root.save_hashes(scene.store, scene.root, first)

    again = verified_root.load_hashes(scene.store, scene.root)
    assert (differences(scene.root, tree, again), again.read) == ([], 0)

    _write(scene.root)  # size and mtime are as before
    changed = verified_root.load_hashes(scene.store, scene.root)
    assert differences(scene.root, tree, changed) == [
        "usr/bin/same: its content differs",
        "usr/bin/tool: its content differs",
    ]
    assert changed.read == 2


def test_hashes_of_another_machine_or_file_system_do_not_count(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.age(monkeypatch)
    scene.verify()
    assert verified_root.load_hashes(scene.store, scene.root).known
    with monkeypatch.context() as patch:
        patch.setattr(verified_root, "_LOCAL", {0x6969: "nfs"})
        assert not verified_root.load_hashes(scene.store, scene.root).known
    (scene.store.root / "keys" / "machine.pem").unlink()
    assert not verified_root.load_hashes(scene.store, scene.root).known


def test_a_file_that_was_just_changed_is_read_again(scene: Scene) -> None:
    """Within the granularity of the file system's clock, it could change again with the same ctime."""
    scene.verify()
    assert not verified_root.load_hashes(scene.store, scene.root).known


def test_a_tree_in_use_is_not_replaced(scene: Scene) -> None:
    (scene.root / "usr/bin/planted").write_bytes(b"")
    with using(scene.root), pytest.raises(BuildFailed, match="a command is running in it"):
        scene.verify()
    assert len(scene.verify()) == 1


def test_a_tree_that_differs_again_at_once_is_an_error_of_the_disk(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scene.root / "usr/bin/planted").write_bytes(b"")
    monkeypatch.setattr(verified_root, "hashed", lambda path, status: "0" * 64)
    with pytest.raises(BuildFailed, match="differs from the layers that were just unpacked"):
        scene.verify()
