"""`export` writes what containerd, enroot and Apptainer mount; other programs read the result."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.erofs_tools import with_mkfs
from tests.needs import tool
from tests.roots import entry, layer, minimal_layout
from torchkiln.errors import BuildFailed
from torchkiln.oci.erofs import place_of
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.squashfs import write_tar
from torchkiln.oci.unpack import layer_index, unpack
from torchkiln.runtimes import erofs_mount
from torchkiln.runtimes.image_root import layers_of

DIR, LINK, HARD = b"5", b"2", b"1"


@dataclass(frozen=True)
class Scene:
    """A layout with two images that share a layer, a folder for results, and one image unpacked."""

    layout: Path
    folder: Path
    image: ImageOnDisk
    copy: Path

    def export(self, *words: str | Path, code: int = 0) -> str:
        """Run `torchkiln export`, and return what it printed on stderr."""
        argv = [sys.executable, "-m", "torchkiln", "export", *map(str, words), "--output", str(self.layout)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stderr


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    lower = layer(
        tmp_path,
        *(entry("opt", kind=DIR), entry("opt/replaced", b"old"), entry("opt/removed", b"removed")),
        *(entry("opt/second", kind=HARD, to="opt/replaced"), entry("opt/third", kind=HARD, to="opt/removed")),
        *(entry("opt/fourth", kind=HARD, to="opt/removed"), entry("opt/link", kind=LINK, to="../opt/second")),
        *(entry("etc", kind=DIR), entry("etc/environment", b"OLD=1\n")),
        *(entry("opt/d", kind=DIR, mode=0o2750), entry("opt/d/inside", b"1"), entry("opt/e", kind=DIR)),
        *(entry("opt/e/file", b"x" * 300_000, mode=0o4755), entry(f"opt/{'long' * 40}", b"long name")),
    )
    upper = layer(
        tmp_path,
        *(entry("opt", kind=DIR, mode=0o700), entry("opt/replaced", b"new"), entry("opt/.wh.removed")),
        *(entry("opt/.wh.d"), entry("opt/e", kind=DIR, mode=0o1777)),
    )
    other = layer(tmp_path, entry("srv", kind=DIR))
    config: dict[str, object] = {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "A=b c"]}
    layout = minimal_layout(tmp_path / "dist", [lower, upper], config, "a")
    second = minimal_layout(tmp_path / "second", [lower, other], {}, "b")
    shutil.copytree(second / "blobs", layout / "blobs", dirs_exist_ok=True)
    index, more = (json.loads((folder / "index.json").read_text()) for folder in (layout, second))
    index["manifests"] += more["manifests"]
    (layout / "index.json").write_text(json.dumps(index))
    image = open_layout(layout).image("a")
    unpack(layers_of(image), tmp_path / "copy")
    return Scene(layout, tmp_path / "out", image, tmp_path / "copy")


def listing(root: Path) -> dict[str, tuple[object, ...]]:
    """Mode, owner, time, and content or target of everything below *root*; of a file also its other names."""
    found: dict[str, tuple[object, ...]] = {}
    groups: dict[int, list[str]] = {}
    for path in sorted(root.rglob("*")):
        status, name = path.lstat(), str(path.relative_to(root))
        content = os.readlink(path) if path.is_symlink() else ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            groups.setdefault(status.st_ino, []).append(name)
        mode = 0 if path.is_symlink() else status.st_mode
        found[name] = (mode, status.st_uid, status.st_gid, int(status.st_mtime), content)
    return {
        name: (*values, next((names for names in groups.values() if name in names), []))
        for name, values in found.items()
    }


@pytest.mark.parametrize("name", ["A", "A\nB"])
def test_a_variable_cannot_set_another_one(scene: Scene, name: str) -> None:
    """The gate has read one variable with a line break, /etc/environment would have two."""
    layers, written = layers_of(scene.image), bytearray()
    with pytest.raises(BuildFailed, match=r"cannot contain the variable 'A.*: it has a line break"):
        write_tar(layers, [layer_index(one) for one in layers], {name: "b\nLD_PRELOAD=/x"}, written.extend)
    assert b"LD_PRELOAD" not in written


@pytest.fixture
def squashfs_tools() -> None:
    tool("tar2sqfs")
    tool("unsquashfs")


@pytest.mark.usefixtures("squashfs_tools")
def test_a_squashfs_has_the_files_of_the_image_and_the_same_bytes_each_time(scene: Scene) -> None:
    first, second = scene.folder / "a.squashfs", scene.folder / "b.squashfs"
    assert "export: " in scene.export("squashfs", first, "a")
    scene.export("squashfs", second, "a")
    assert first.read_bytes() == second.read_bytes()
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", scene.folder / "x", first], check=True)
    found, expected = listing(scene.folder / "x"), listing(scene.copy)
    assert (
        scene.folder / "x/etc/environment"
    ).read_text() == "A=b c\nNVIDIA_VISIBLE_DEVICES=all\nPATH=/bin\n"
    assert found.pop("etc/environment") != expected.pop("etc/environment")
    assert found == expected
    assert sorted(path.name for path in scene.folder.iterdir()) == ["a.squashfs", "b.squashfs", "x"]


@pytest.mark.usefixtures("squashfs_tools")
def test_a_failed_squashfs_leaves_no_file_and_an_existing_one_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.folder.mkdir()
    target = scene.folder / "a.squashfs"
    programs = scene.folder.parent / "programs"
    programs.mkdir()
    (programs / "tar2sqfs").write_text("#!/bin/sh\necho 'write: No space left on device' >&2\nexit 1\n")
    (programs / "tar2sqfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    said = scene.export("squashfs", target, "a", code=6)
    assert "tar2sqfs failed with exit code 1: write: No space left on device" in said
    assert list(scene.folder.iterdir()) == []
    (programs / "tar2sqfs").unlink()
    monkeypatch.setenv("PATH", str(programs))
    assert "apt-get install squashfs-tools-ng" in scene.export("squashfs", target, "a", code=8)
    target.write_bytes(b"earlier")
    assert "a.squashfs: File exists" in scene.export("squashfs", target, "a", code=2)
    assert target.read_bytes() == b"earlier"


@pytest.fixture
def mkfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return with_mkfs(tmp_path / "bin", monkeypatch)


def test_a_folder_has_each_layer_once(scene: Scene, mkfs: Path) -> None:
    assert "1 images have 2 layers" in scene.export("erofs", scene.folder, "a")
    before = {path: path.stat().st_ino for path in scene.folder.rglob("*.erofs")}
    assert set(before) == {place_of(scene.folder, layer.diff_id) for layer in scene.image.layers}
    said = scene.export("erofs", scene.folder, "--all")
    assert "2 images have 3 layers" in said
    assert said.rstrip().endswith("1 are new")
    assert before.items() <= {path: path.stat().st_ino for path in scene.folder.rglob("*.erofs")}.items()
    descriptor = os.open(place_of(scene.folder, scene.image.layers[0].diff_id), os.O_RDONLY)
    with erofs_mount.mounts([descriptor]) as mounts:
        assert Path(f"/proc/self/fd/{mounts[0]}/opt/e/file").read_bytes() == b"x" * 300_000
    os.close(descriptor)


def test_gc_deletes_what_no_image_and_no_lock_needs(scene: Scene, mkfs: Path, tmp_path: Path) -> None:
    scene.export("erofs", scene.folder, "--all")
    loose = place_of(scene.folder, "sha256:" + "ab" * 32)  # type: ignore[arg-type]
    loose.parent.mkdir()
    loose.write_bytes(b"1")
    (scene.folder / "notes.txt").write_text("")
    locks = tmp_path / "locks"
    locks.mkdir()
    kept = set(scene.folder.rglob("*")) - {loose, loose.parent}
    assert "1 layers would be deleted" in scene.export("gc", scene.folder, "--dry-run", "--images", locks)
    assert loose.exists()
    assert "1 layers were deleted" in scene.export("gc", scene.folder, "--images", locks)
    assert kept <= set(scene.folder.rglob("*"))
    assert not loose.exists()
    (locks / "x").mkdir()
    (locks / "x/lock.json").write_text("{")
    scene.export("gc", scene.folder, "--images", locks, code=5)


def test_a_folder_that_others_can_change_is_refused(scene: Scene, mkfs: Path) -> None:
    """A layer that DIR has is not written: someone else could have put another tree there, by its name."""
    scene.folder.mkdir()
    scene.folder.chmod(0o777)
    said = scene.export("erofs", scene.folder, "a", code=2)
    assert f"the folder {scene.folder} can be changed by other users" in said
    assert list(scene.folder.iterdir()) == []


def test_no_link_in_the_folder_is_followed(scene: Scene, mkfs: Path, tmp_path: Path) -> None:
    """Someone else may have prepared DIR: a link in it must not lead to other files of the user."""
    diff_id = scene.image.layers[0].diff_id.removeprefix("sha256:")
    place, mine = scene.folder / "sha256" / diff_id[:2], tmp_path / "mine"
    mine.mkdir()
    kept = {mine / f"{diff_id[:2]}{'0' * 62}.erofs", mine / ".x.erofs.y"}
    for path in kept:
        path.write_text("")
        os.utime(path, (0, 0))
    place.parent.mkdir(parents=True)
    place.symlink_to(mine)
    scene.export("gc", scene.folder, "--images", tmp_path / "locks")
    assert f"{place} is a symbolic link" in scene.export("erofs", scene.folder, "a", code=6)
    assert set(mine.iterdir()) == kept


def test_no_image_is_named(scene: Scene, mkfs: Path) -> None:
    assert "add a TAG, --torch and --cuda, or --all" in scene.export("erofs", scene.folder, code=2)
    assert not scene.folder.exists()


@pytest.mark.usefixtures("squashfs_tools")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk requires root")
@pytest.mark.parametrize("words", [("squashfs", "x.squashfs"), ("erofs", "")], ids=["squashfs", "erofs"])
def test_a_full_disk_is_named(tmp_path: Path, scene: Scene, mkfs: Path, words: tuple[str, str]) -> None:
    """tar2sqfs says "I/O error", and mkfs.erofs "invalid chksum"."""
    big = layer(tmp_path, entry("big", os.urandom(24 << 20)))
    layout = minimal_layout(tmp_path / "big", [big], {}, "big")
    scene.folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs", scene.folder], check=True)
    try:
        said = scene.export(words[0], scene.folder / words[1], f"{layout}:big", code=6)
        assert "cannot be created: No space left on device" in said
        assert [path for path in scene.folder.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", scene.folder], check=True)
