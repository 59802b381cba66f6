"""Layers → a root: whole or not at all, and never outside it."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roots import entry, layer, tar_of
from tests.zstd_frames import program
from torchkiln.errors import KilnError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.unpack import LayerBlob, unpack, unpacked_root
from torchkiln.store.store import Store

NOWHERE = Digest("sha256:" + "0" * 64)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.DIRTYPE)


def link(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.SYMTYPE, to=to)


def test_later_layers_add_and_replace(tmp_path: Path) -> None:
    lower = layer(tmp_path, folder("./"), folder("./a"), entry("./a/one", b"1"), link("./l", "a"))
    upper = layer(tmp_path, entry("a/one", b"2", mode=0o640), entry("a/two", b"3"), entry("l", b"file now"))
    root = tmp_path / "root"

    unpack([lower, upper], root)

    assert (root / "a/one").read_bytes() == b"2"
    assert (root / "a/one").stat().st_mode & 0o777 == 0o640
    assert int((root / "a/one").stat().st_mtime) == 1_700_000_000
    assert (root / "a/two").read_bytes() == b"3"
    assert (root / "l").read_bytes() == b"file now"
    assert not (root / "l").is_symlink()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        pytest.param([entry("../x")], "contains '..'", id="dotdot"),
        pytest.param([entry("/x")], "the name is absolute", id="absolute"),
        pytest.param([entry("a/.wh.b")], "whiteout", id="whiteout"),
        pytest.param([entry("n", kind=tarfile.CHRTYPE)], "a device or a pipe", id="device"),
        pytest.param([entry("p", kind=tarfile.FIFOTYPE)], "a device or a pipe", id="pipe"),
        pytest.param([entry("out/x", b"!")], "through a symbolic link", id="through-lower-link"),
        pytest.param([folder("out"), entry("out/x")], "would replace a symbolic link", id="folder-over-link"),
        pytest.param(
            [entry("h", kind=tarfile.LNKTYPE, to="/etc/passwd")],
            "the hard link target is absolute",
            id="hard-absolute",
        ),
        pytest.param(
            [entry("h", kind=tarfile.LNKTYPE, to="out/x")], "not an earlier file", id="hard-through-link"
        ),
    ],
)
def test_what_reaches_out_is_refused_and_nothing_stays(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], words: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("untouched")
    lower = layer(tmp_path, link("out", str(outside)))

    with pytest.raises(VerificationFailed, match=words):
        unpack([lower, layer(tmp_path, *entries)], tmp_path / "roots" / "r")

    assert list((tmp_path / "roots").iterdir()) == []
    assert (outside / "x").read_text() == "untouched"
    assert [path.name for path in outside.iterdir()] == ["x"]


def test_a_layer_that_is_not_its_diff_id_is_refused(tmp_path: Path) -> None:
    good = layer(tmp_path, entry("x", b"1"))

    with pytest.raises(VerificationFailed, match="diff_id mismatch: expected sha256:"):
        unpack([LayerBlob(path=good.path, diff_id=NOWHERE)], tmp_path / "roots" / "r")

    assert list((tmp_path / "roots").iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip"])
def test_a_damaged_blob_is_an_error_of_ours(tmp_path: Path, damage: str) -> None:
    good = layer(tmp_path, entry("x", bytes(range(256)) * 900))
    data = bytearray(good.path.read_bytes())
    if damage == "cut":
        del data[-500:]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b"hello")
    good.path.write_bytes(data)

    with pytest.raises(KilnError, match=good.path.name):
        unpack([good], tmp_path / "roots" / "r")

    assert list((tmp_path / "roots").iterdir()) == []


def test_many_members_and_foreign_compressors_are_read(tmp_path: Path) -> None:
    tar = tar_of([entry("x", b"y" * 3000)])
    good = layer(tmp_path, entry("x", b"y" * 3000))
    good.path.write_bytes(b"".join(gzip.compress(tar[at : at + 700]) for at in range(0, len(tar), 700)))

    unpack([good], tmp_path / "root")

    assert (tmp_path / "root/x").read_bytes() == b"y" * 3000


@pytest.mark.parametrize("pack", [bytes, program, lambda tar: program(tar[:700]) + program(tar[700:])])
def test_a_layer_is_read_whichever_way_it_is_compressed(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    good = layer(tmp_path, entry("x", b"y" * 3000))
    good.path.write_bytes(pack(tar_of([entry("x", b"y" * 3000)])))

    unpack([good], tmp_path / "root")

    assert (tmp_path / "root/x").read_bytes() == b"y" * 3000


def test_a_zstd_layer_that_is_cut_is_refused(tmp_path: Path) -> None:
    good = layer(tmp_path, entry("x", b"1"))
    good.path.write_bytes(program(tar_of([entry("x", b"1")]))[:-5])

    with pytest.raises(VerificationFailed, match="is damaged"):
        unpack([good], tmp_path / "roots" / "r")

    assert list((tmp_path / "roots").iterdir()) == []


def test_an_image_is_unpacked_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    blob = layer(tmp_path, entry("x", b"1"))
    root = unpacked_root(NOWHERE, [blob], store)
    blob.path.unlink()

    assert unpacked_root(NOWHERE, [blob], store) == root == store.root / "rootfs" / ("0" * 64)
    assert (root / "x").exists()


def test_other_users_do_not_reach_an_unpacked_image(tmp_path: Path) -> None:
    """Its set-user-id programs would be root's on the host too."""
    store = Store(tmp_path / "cache")
    root = unpacked_root(NOWHERE, [layer(tmp_path, entry("su", b"1", mode=0o4755))], store)

    assert (root / "su").stat().st_mode & 0o7777 == 0o4755
    assert root.parent.stat().st_mode & 0o777 == 0o700
