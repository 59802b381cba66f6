"""Layers are unpacked to a folder; and a layer is made from the differences of two trees."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.roots import entry, layer, tar_of
from tests.zstd_frames import program
from torchkiln.base.on_top import write_upper
from torchkiln.errors import BuildFailed, KilnError, VerificationFailed
from torchkiln.model.contents import TreeEntry
from torchkiln.model.digest import Digest
from torchkiln.oci.read_tar import apply_layer
from torchkiln.oci.unpack import LayerBlob, unpack, unpacked_root
from torchkiln.oci.validate.layer import TarInspector
from torchkiln.store.store import Store

NOWHERE = Digest("sha256:" + "0" * 64)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.DIRTYPE)


def link(name: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, kind=tarfile.SYMTYPE, to=to)


def test_blocks_of_zeros_become_holes(tmp_path: Path) -> None:
    """This holds at any offset and at a file's end. Shorter runs of zeros are written. No content changes."""
    text = b"text" * 5000
    content = {
        "end": text + bytes(3 << 20),
        "middle": text + bytes((2 << 20) + 7) + text,
        "start": bytes(1 << 20) + b"1",
        "only": bytes(1 << 20),
        "short": (b"1" + bytes(12 << 10)) * 30,
        "empty": b"",
    }
    root = tmp_path / "root"
    unpack([layer(tmp_path, *(entry(name, data) for name, data in content.items()))], root)
    assert {name: (root / name).read_bytes() == data for name, data in content.items()} == dict.fromkeys(
        content, True
    )
    allocated = {name: (root / name).stat().st_blocks * 512 for name in content}
    assert allocated["only"] <= 32 << 10  # zeros that come in two pieces are written
    assert max(allocated[name] for name in ("end", "middle", "start")) < 128 << 10
    assert allocated["short"] >= len(content["short"])


def test_a_layer_that_is_not_its_diff_id_is_refused(tmp_path: Path) -> None:
    good = layer(tmp_path, entry("x", b"1"))
    with pytest.raises(VerificationFailed, match="diff_id mismatch: expected sha256:"):
        unpack([LayerBlob(path=good.path, diff_id=NOWHERE)], tmp_path / "roots" / "r")
    assert list((tmp_path / "roots").iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip", "cut zstd"])
def test_a_damaged_blob_is_an_error_of_ours(tmp_path: Path, damage: str) -> None:
    content = entry("x", bytes(range(256)) * 900)
    good = layer(tmp_path, content)
    data = bytearray(good.path.read_bytes() if damage != "cut zstd" else program(tar_of([content])))
    if damage.startswith("cut"):
        del data[-500:]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b"hello")
    good.path.write_bytes(data)
    with pytest.raises(KilnError, match=good.path.name):
        unpack([good], tmp_path / "roots" / "r")
    assert list((tmp_path / "roots").iterdir()) == []


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        program,
        lambda tar: program(tar[:700]) + program(tar[700:]),
        lambda tar: b"".join(gzip.compress(tar[at : at + 700]) for at in range(0, len(tar), 700)),
    ],
)
def test_a_layer_is_read_in_every_compression(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Also with many members or frames, by other compressors."""
    good = layer(tmp_path, entry("x", b"y" * 3000))
    good.path.write_bytes(pack(tar_of([entry("x", b"y" * 3000)])))
    unpack([good], tmp_path / "root")
    assert (tmp_path / "root/x").read_bytes() == b"y" * 3000


def test_an_image_is_unpacked_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    blob = layer(tmp_path, entry("x", b"1"))
    root = unpacked_root(NOWHERE, [blob], store)
    blob.path.unlink()
    assert unpacked_root(NOWHERE, [blob], store) == root == store.root / "rootfs" / ("0" * 64)
    assert (root / "x").exists()


def test_other_users_do_not_reach_an_unpacked_image(tmp_path: Path) -> None:
    """On the host, its set-user-id programs would run as root, too."""
    store = Store(tmp_path / "cache")
    root = unpacked_root(NOWHERE, [layer(tmp_path, entry("su", b"1", mode=0o4755))], store)
    assert (root / "su").stat().st_mode & 0o7777 == 0o4755
    assert root.parent.stat().st_mode & 0o777 == 0o700


Entry = tuple[tarfile.TarInfo, bytes]
FOLDER, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
EPOCH = 1_600_000_000


def upper(lower: list[Entry], whole: list[Entry]) -> bytes:
    """The tar of the layer that must be laid over *lower* to get *whole*."""
    out = io.BytesIO()
    write_upper([io.BytesIO(tar_of(lower))], io.BytesIO(tar_of(whole)), out, mtime=EPOCH)
    return out.getvalue()


def test_a_new_file_with_several_names_is_written_once() -> None:
    """The first name has the content, the others are links. A hard link to a file of the base is a file."""
    driver = [entry("./b", b"driver", mode=0o640), entry("./a", kind=HARD, to="./b", mode=0o640)]
    whole = [*BASE, *driver, entry("./c", kind=HARD, to="./b"), entry("./p", kind=HARD, to="./usr/bin/perl")]
    out = io.BytesIO()
    write_upper([io.BytesIO(tar_of(BASE))], io.BytesIO(tar_of(whole)), out, mtime=EPOCH, hard_links=True)
    found = {member.name: (member.type, member.linkname, member.size) for member in members(out.getvalue())}
    assert found == {
        "a": (tarfile.REGTYPE, "", 6),
        "b": (HARD, "a", 0),
        "c": (HARD, "a", 0),
        "p": (tarfile.REGTYPE, "", 4),
    }


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()


BASE = [
    entry("./", kind=FOLDER),
    entry("./etc/", kind=FOLDER),
    entry("./etc/a", b"1"),
    entry("./usr/", kind=FOLDER),
    entry("./usr/bin/", kind=FOLDER),
    entry("./usr/bin/cc", kind=LINK, to="gcc-12"),
    entry("./usr/bin/perl", b"perl"),
    entry("./usr/bin/perl5", kind=HARD, to="./usr/bin/perl"),
]


def test_the_upper_layer_has_new_and_changed_files_with_their_parents() -> None:
    data = upper(
        BASE,
        [
            *BASE[:2],
            entry("./etc/a", b"2"),
            *BASE[3:5],
            entry("./usr/bin/cc", kind=LINK, to="gcc-11"),
            *BASE[6:],
            entry("./usr/bin/cmake", b"cmake", mode=0o4751),
        ],
    )
    assert [(member.name, member.mode, member.mtime) for member in members(data)] == [
        ("etc", 0o755, EPOCH),
        ("etc/a", 0o755, EPOCH),
        ("usr", 0o755, EPOCH),
        ("usr/bin", 0o755, EPOCH),
        ("usr/bin/cc", 0o777, EPOCH),
        ("usr/bin/cmake", 0o4751, EPOCH),
    ]
    inspector = TarInspector()
    inspector.inspect([data])
    assert (inspector.faults(), inspector.paths.missing_parents()) == ((), [])


def test_times_alone_are_no_difference_and_older_ones_stay() -> None:
    later = [(info.replace(mtime=info.mtime + 5, deep=False), data) for info, data in BASE]
    assert upper(BASE, later) == upper(BASE, BASE) == b"\0" * 1024
    old, _ = entry("./etc/b", b"b")
    old.mtime = 7
    assert [member.mtime for member in members(upper(BASE, [*BASE, (old, b"b")]))] == [EPOCH, 7]


@pytest.mark.parametrize("change", ["mode", "uid", "gid", "xattr"])
def test_attributes_of_a_file_are_a_difference(change: str) -> None:
    info, data = entry("./etc/a", b"1")
    if change == "xattr":
        info.pax_headers = {"SCHILY.xattr.user.x": "1"}
    else:
        setattr(info, change, 0o640 if change == "mode" else 33)
    (_, found) = members(upper(BASE, [*BASE, (info, data)]))
    for name in ("mode", "uid", "gid"):
        assert getattr(found, name) == getattr(info, name)
    assert found.pax_headers.get("SCHILY.xattr.user.x") == info.pax_headers.get("SCHILY.xattr.user.x")


def test_a_hard_link_becomes_a_file_for_the_other_may_lie_below() -> None:
    data = upper(BASE, [*BASE, entry("./usr/bin/perl6", kind=HARD, to="./usr/bin/perl")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = tar.extractfile("usr/bin/perl6")
        assert found is not None
        assert found.read() == b"perl"
        assert tar.getmember("usr/bin/perl6").isreg()


LONG = "x" * 90


@pytest.mark.parametrize(
    "name", [f"./{LONG}/{LONG}/{LONG}", "./etc/grüße", "./etc/\udcff\udcfe", "./etc/a b\n"]
)
def test_names_of_any_length_and_script_come_through(name: str) -> None:
    found = members(upper(BASE, [*BASE, entry(name, b"x")]))[-1]
    assert found.name == name.removeprefix("./")


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (BASE[:-1], "usr/bin/perl5 was deleted"),
        ([*BASE, entry("./etc/null", kind=tarfile.CHRTYPE)], "etc/null is a device"),
        ([*BASE, entry("./etc/p", kind=tarfile.FIFOTYPE)], "etc/p is a pipe"),
        ([*BASE, entry("../x", b"x")], "'../x': the name contains '..'"),
        ([*BASE, entry("./etc/../../x", b"x")], "the name contains '..'"),
        ([*BASE, entry("./etc/.wh.a")], "etc/.wh.a is a whiteout: it would delete files of other layers"),
        ([*BASE, entry("./etc/.wh..wh..opq")], "is a whiteout: it would delete files of other layers"),
        ([*BASE, entry("./usr/bin", b"x")], "usr/bin was a folder and is a file"),
        ([*BASE, entry("./etc/a", kind=FOLDER)], "etc/a was a file and is a folder"),
        ([*BASE, entry("./usr/bin/cc/x", b"x")], "usr/bin/cc/x is below usr/bin/cc, which is a link"),
        ([*BASE, entry("./etc/b", kind=HARD, to="nowhere")], "is a hard link to nowhere"),
    ],
)
def test_differences_that_a_layer_must_not_have_are_named(whole: list[Entry], words: str) -> None:
    with pytest.raises(BuildFailed) as caught:
        upper(BASE, whole)
    assert words in caught.value.message


def test_a_damaged_tar_is_reported() -> None:
    with pytest.raises(BuildFailed, match="cannot be read"):
        write_upper([io.BytesIO(tar_of(BASE))], io.BytesIO(tar_of(BASE)[:2000]), io.BytesIO(), mtime=EPOCH)
    with pytest.raises(BuildFailed, match="cannot be read"):
        write_upper([io.BytesIO(b"no tar" * 200)], io.BytesIO(tar_of(BASE)), io.BytesIO(), mtime=EPOCH)


NAMES = st.sampled_from(["a", "b", "a-b", "etc", "ü", "x" * 80])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LEAVES = st.one_of(
    st.tuples(st.just(tarfile.REGTYPE), st.binary(max_size=600), st.sampled_from([0o644, 0o4755])),
    st.tuples(st.just(LINK), st.sampled_from([b"a", b"../b"]), st.just(0o777)),
)


Leaves = dict[str, tuple[bytes, bytes, int]]  # path -> (kind, content or target, mode)


def entries(leaves: Leaves) -> list[Entry]:
    """A tree of these leaves: their folders come first. Paths below another leaf are left out."""
    paths = [path for path in leaves if not any(path.startswith(f"{other}/") for other in leaves)]
    folders = {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 1)}
    found = [entry(f"./{folder}", kind=FOLDER) for folder in sorted(folders)]
    for path in sorted(paths):
        kind, data, mode = leaves[path]
        to = data.decode() if kind == LINK else ""
        found.append(entry(f"./{path}", b"" if to else data, kind=kind, to=to, mode=mode))
    return found


@given(st.dictionaries(PATHS, LEAVES, max_size=5), st.dictionaries(PATHS, LEAVES, max_size=5))
def test_lower_and_layer_make_the_whole(lower: Leaves, more: Leaves) -> None:
    """If a path would have to be deleted, it is an error instead."""
    below, whole = entries(lower), entries({**lower, **more})
    kinds = [
        {info.name.removeprefix("./").rstrip("/"): info.isdir() for info, _ in tree}
        for tree in (below, whole)
    ]
    if any(kinds[1].get(path) != folder for path, folder in kinds[0].items()):
        with pytest.raises(BuildFailed, match=r"was deleted| and is a "):
            upper(below, whole)
        return
    data = upper(below, whole)
    tree: dict[str, TreeEntry] = {}
    wanted: dict[str, TreeEntry] = {}
    for tar in (tar_of(below), data):
        apply_layer(tree, io.BytesIO(tar))
    apply_layer(wanted, io.BytesIO(tar_of(whole)))
    assert tree == wanted
    assert data == upper(below, list(reversed(whole)))
