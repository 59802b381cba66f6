"""Where the kernel and mkfs.erofs allow it, the layers of an image are mounted, and nothing is unpacked."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.erofs_tools import with_mkfs
from tests.hostile import tars
from tests.listeners import Lines
from tests.roots import entries_of, entry, layer, minimal_layout, tiny_root
from torchkiln.errors import BuildFailed, VerificationFailed
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.erofs import Unmountable, convert, find_mkfs, place_of
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.unpack import LayerBlob, root_of, unpack
from torchkiln.runtimes import erofs_mount
from torchkiln.runtimes.command import Program
from torchkiln.runtimes.image_root import (
    converted,
    discard,
    is_ready,
    layers_of,
    root_for,
    unpacked,
    verified,
)
from torchkiln.runtimes.mounted import MountedLayers
from torchkiln.runtimes.rootfs import RootfsRuntime, using
from torchkiln.store.store import Store

DIR, LINK, HARD = b"5", b"2", b"1"
PATH = {"PATH": "/usr/bin:/bin"}


@dataclass(frozen=True)
class Scene:
    """A small image of two layers with a shell, and an empty cache."""

    image: ImageOnDisk
    store: Store
    mkfs: Path
    layers: tuple[LayerBlob, ...]

    def root(self) -> MountedLayers:
        """The root of the image, which must be mounted."""
        lines = Lines()
        found = root_for(self.image, self.store, lines)
        assert isinstance(found, MountedLayers), lines.lines
        assert not root_of(self.store, self.image.manifest).exists()
        return found

    def output(self, *argv: str, **env: str) -> str:
        """The output of a command in the image."""
        done = RootfsRuntime().run(self.root(), Program(argv=argv, env=PATH | env))
        assert done.code == 0, done.stderr
        return done.stdout.decode()

    def place(self, number: int) -> Path:
        """The EROFS image of a layer."""
        return place_of(self.store.root / "erofs", self.layers[number].diff_id)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    mkfs = with_mkfs(tmp_path / "bin", monkeypatch)
    base = tiny_root(tmp_path / "root", "cat", "ls", "stat", "id", "touch", "rm")
    lower = layer(
        tmp_path,
        *entries_of(base),
        *(entry("opt", kind=DIR), entry("opt/old", b"old"), entry("opt/gone", b"content of gone")),
        *(entry("opt/same", kind=HARD, to="opt/old"), entry("opt/link", kind=LINK, to="old", mode=0o777)),
        *(entry("opt/d", kind=DIR, mode=0o2750), entry("opt/d/inside", b"1")),
    )
    upper = layer(
        tmp_path,
        *(entry("opt", kind=DIR), entry("opt/old", b"new", mode=0o640)),
        *(entry("opt/.wh.gone"), entry("opt/.wh.d")),
    )
    layout = minimal_layout(tmp_path / "dist", [lower, upper], {}, "t")
    image = open_layout(layout).image("t")
    return Scene(image, Store(tmp_path / "cache"), mkfs, tuple(layers_of(image)))


def test_a_command_runs_in_mounted_layers_and_leaves_no_mount(scene: Scene) -> None:
    before = Path("/proc/mounts").read_text()
    script = "cat /opt/old /opt/same /opt/link; ls /opt; echo changed > /opt/old; cat /opt/old"
    script += "; stat -c %a:%u /opt/old"
    assert scene.output("sh", "-c", script).split() == [
        *("newoldnewlink", "old", "same"),
        *("changed", "640:0"),
    ]
    assert scene.output("cat", "/opt/old") == "new"  # what a command writes is discarded
    assert Path("/proc/mounts").read_text() == before
    assert is_ready(scene.image, scene.store)
    discard(scene.image, scene.store)
    assert not is_ready(scene.image, scene.store)


def test_a_second_image_converts_only_its_own_layers(scene: Scene, tmp_path: Path) -> None:
    scene.root()
    first = scene.place(0).stat().st_ino
    other = layer(tmp_path, entry("opt", kind=DIR), entry("opt/other", b"other"))
    layout = minimal_layout(tmp_path / "second", [scene.layers[0], other], {}, "t")
    image = open_layout(layout).image("t")
    lines = Lines()
    root = root_for(image, scene.store, lines)
    assert RootfsRuntime().run(root, Program(argv=("cat", "/opt/other"), env=PATH)).stdout == b"other"
    assert scene.place(0).stat().st_ino == first
    discard(image, scene.store, but=converted(scene.image, scene.store))
    assert (is_ready(scene.image, scene.store), is_ready(image, scene.store)) == (True, False)
    assert lines.lines == [f"converting {image.ref} to EROFS"]
    root_for(image, scene.store, Lines())
    assert isinstance(root_for(image, scene.store, again := Lines()), MountedLayers)
    assert again.lines == []


def test_mounts_replace_an_unpacked_copy_unless_a_command_runs_in_it(scene: Scene) -> None:
    with using(unpacked(scene.image, scene.store, Lines())):
        assert isinstance(root_for(scene.image, scene.store, Lines()), MountedLayers)
        assert root_of(scene.store, scene.image.manifest).is_dir()
    scene.root()
    assert list((scene.store.root / "rootfs").iterdir()) == []
    assert list(scene.store.records("roots")) == []


def test_an_unpacked_copy_is_used_on_a_full_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    copy = unpacked(scene.image, scene.store, Lines())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert root_for(scene.image, scene.store, Lines()) == copy
    scene.root()


def test_the_mounted_tree_is_that_of_the_layers_and_of_an_unpacked_copy(scene: Scene, tmp_path: Path) -> None:
    tree, when, root = verified(scene.image, scene.store, Lines())
    assert root == "mounted"
    assert when.endswith("Z")
    assert not root_of(scene.store, scene.image.manifest).exists()
    unpack(scene.layers, copy := tmp_path / "copy")
    listed = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert listed == tree.keys() - {""}
    assert "opt/gone" not in tree
    script = 'for f in "$@"; do stat -c "%n %a %u:%g %Y %s %N" "$f"; done'
    names = sorted(f"/{name}" for name in listed if not (copy / name).is_dir())
    mounted = scene.output("sh", "-c", script, "sh", *names)
    plain = RootfsRuntime().run(copy, Program(argv=("sh", "-c", script, "sh", *names), env=PATH))
    # Machine files of /etc are written when a command starts.
    assert mounted == plain.stdout.decode()


def _write(path: Path) -> None:
    status = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(b"another")
    path.with_suffix(".new").rename(path)


TAMPERED: Mapping[str, Callable[[Path], object]] = {
    "a byte": _write,
    "replaced": _replace,
    "cut off": lambda path: os.truncate(path, 4096),
    "deleted": lambda path: path.unlink(),
    "a link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "the record": lambda path: (path.parents[3] / "records/erofs" / f"{path.stem}.json").unlink(),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_image_is_found_and_made_again(scene: Scene, name: str) -> None:
    scene.root()
    good = scene.place(0).read_bytes()
    TAMPERED[name](scene.place(0))
    assert scene.output("cat", "/opt/old") == "new"
    assert scene.place(0).read_bytes() == good
    assert not scene.place(0).is_symlink()


def test_a_change_between_the_check_and_the_command_is_refused(scene: Scene) -> None:
    root = scene.root()
    _write(scene.place(1))
    with pytest.raises(BuildFailed, match="was changed after it was checked"):
        RootfsRuntime().run(root, Program(argv=("true",), env=PATH))


def test_a_forged_record_does_not_count(scene: Scene) -> None:
    scene.root()
    good = scene.place(0).read_bytes()
    record = scene.store.record("erofs", scene.place(0).stem)
    assert record is not None
    _write(scene.place(0))
    scene.store.put_record("erofs", scene.place(0).stem, {**record, "signatures": []})
    scene.root()
    assert scene.place(0).read_bytes() == good


def test_the_same_layer_gives_the_same_bytes(scene: Scene, tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert(scene.layers[0], tmp_path / name, str(scene.mkfs))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o444


def with_attribute(name: str) -> tuple[tarfile.TarInfo, bytes]:
    """A file with an extended attribute."""
    info, data = entry(name, b"1")
    info.pax_headers = {"SCHILY.xattr.user.a": "1"}
    return info, data


REFUSED = {
    "opaque": ([entry("opt", kind=DIR), entry("opt/.wh..wh..opq")], "a whiteout that is opaque"),
    "parent": ([entry("opt/x/y", b"1")], "does not contain its parent directory"),
    "attributes": ([with_attribute("x")], "has extended attributes"),
    "siblings": ([entry("d", kind=DIR), *(entry(f"d/{n}") for n in range(30_001))], "d: has more than 30000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_would_give_another_tree_is_not_mounted(scene: Scene, tmp_path: Path, name: str) -> None:
    entries, reason = REFUSED[name]
    made = layer(tmp_path, *entries)
    with pytest.raises(Unmountable, match=reason):
        convert(made, tmp_path / "x.erofs", str(scene.mkfs))
    assert list(tmp_path.glob("*x.erofs*")) == []
    if name == "opaque":
        return  # it cannot be unpacked, either
    image = open_layout(minimal_layout(tmp_path / "odd", [scene.layers[0], made], {}, "t")).image("t")
    for _ in range(2):
        lines = Lines()
        assert isinstance(root_for(image, scene.store, lines), Path)
        assert reason in lines.lines[-1]
        assert isinstance(root_for(image, scene.store, again := Lines()), Path)
        assert again.lines == []
        discard(image, scene.store)


def test_a_device_or_a_damaged_layer_is_refused(scene: Scene, tmp_path: Path) -> None:
    for number, kind in enumerate((b"3", b"4", b"6")):
        with pytest.raises(VerificationFailed):
            convert(layer(tmp_path, entry("dev", kind=kind)), tmp_path / f"{number}", str(scene.mkfs))
    other = LayerBlob(path=scene.layers[0].path, diff_id=scene.layers[1].diff_id)
    with pytest.raises(VerificationFailed, match="diff_id mismatch"):
        convert(other, tmp_path / "y", str(scene.mkfs))
    assert not (tmp_path / "y").exists()


def test_what_mkfs_does_not_know_in_a_header_hides_no_file(scene: Scene, tmp_path: Path) -> None:
    """mkfs.erofs 1.8 skips a file with the type of the first tars, so the file of the lower layer remains."""
    old = tars.head(b"opt/old", b"\0", size=5) + tars.padded(b"fixed")
    blob, encoded = encode_bytes(tars.folder(b"opt") + old + tars.END)
    (path := tmp_path / "upper").write_bytes(blob)
    upper = LayerBlob(path=path, diff_id=encoded.diff_id)
    layout = minimal_layout(tmp_path / "two", [scene.layers[0], upper], {}, "t")
    root = root_for(open_layout(layout).image("t"), scene.store, Lines())
    assert isinstance(root, MountedLayers)
    assert RootfsRuntime().run(root, Program(argv=("cat", "/opt/old"), env=PATH)).stdout == b"fixed"


def test_a_converter_that_reads_another_tree_is_found(scene: Scene) -> None:
    """The program differs from the layer: `verified` unpacks instead, and so do later commands."""
    real = scene.mkfs.with_name("real")
    scene.mkfs.rename(real)
    other = f"sed 's/content of/content 0f/' | {real}"
    scene.mkfs.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} "$1"\n{other} "$@"\n')
    scene.mkfs.chmod(0o755)
    lines = Lines()
    tree, _, root = verified(scene.image, scene.store, lines)
    assert "opt/old" in tree
    assert root == "unpacked"
    assert any("mounted files differ from the layer" in line for line in lines.lines)
    assert isinstance(root_for(scene.image, scene.store, Lines()), Path)


@pytest.mark.parametrize("how", ["missing", "old", "fails"])
def test_without_a_fitting_mkfs_the_image_is_unpacked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "missing":
        scene.mkfs.unlink()
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        answer = "echo 'mkfs.erofs 1.5'" if how == "old" else 'echo "mkfs.erofs 1.9.4"; exit 3'
        scene.mkfs.write_text(f"#!/bin/sh\n{answer}\n")
        scene.mkfs.chmod(0o755)
    root = root_for(scene.image, scene.store, Lines())
    assert isinstance(root, Path)
    assert (root / "opt/old").read_bytes() == b"new"


def test_a_failed_conversion_leaves_no_file_and_is_tried_again(scene: Scene) -> None:
    """A full disk is not a property of the layer."""
    real = scene.mkfs.with_name("real")
    scene.mkfs.rename(real)
    fails = "echo 'write: No space left on device' >&2; exit 1"
    scene.mkfs.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {real} "$1"\n{fails}\n')
    scene.mkfs.chmod(0o755)
    lines = Lines()
    assert isinstance(root_for(scene.image, scene.store, lines), Path)
    assert "mkfs.erofs failed with exit code 1: write: No space left on device" in lines.lines[-1]
    assert [path for path in (scene.store.root / "erofs").rglob("*") if path.is_file()] == []
    assert list((scene.store.root / "tmp").iterdir()) == []
    discard(scene.image, scene.store)
    real.rename(scene.mkfs)
    scene.root()


def test_a_loop_device_mounts_the_same_and_is_freed(scene: Scene) -> None:
    """Linux before 6.12 cannot mount files."""
    layers = scene.root().layers
    descriptor = os.open(layers[0].path, os.O_RDONLY)
    device = erofs_mount.loop_device(descriptor)
    name = Path(os.readlink(f"/proc/self/fd/{device}")).name
    assert Path(f"/sys/block/{name}/loop/backing_file").read_text().strip() == str(layers[0].path)
    with erofs_mount.mounts([device]) as mounts:  # the kernel mounts a device in the same way
        os.close(device)
        assert Path(f"/proc/self/fd/{mounts[0]}/opt/gone").read_bytes() == b"content of gone"
    assert not Path(f"/sys/block/{name}/loop/backing_file").exists()
    os.close(descriptor)


def test_find_mkfs_is_the_one_on_the_path(scene: Scene) -> None:
    assert find_mkfs() == str(scene.mkfs)
