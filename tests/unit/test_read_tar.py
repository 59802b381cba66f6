"""The tar reader, compared with tarfile; it reads layers as blobs, and several layers as one tree."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.roots import entry, tar_of
from torchkiln.errors import ToolMissing
from torchkiln.model.contents import TreeEntry
from torchkiln.oci import encode as module
from torchkiln.oci.encode import MEMBER, encode, encode_bytes
from torchkiln.oci.read_tar import DAMAGED, apply_layer, layer_contents
from torchkiln.oci.tar import header

Entry = tuple[tarfile.TarInfo, bytes]
FOLDER = tarfile.DIRTYPE


def tree_of(*layers: list[Entry]) -> dict[str, TreeEntry]:
    """The file tree of *layers*; the lowest is first."""
    tree: dict[str, TreeEntry] = {}
    for layer in layers:
        apply_layer(tree, io.BytesIO(tar_of(layer)))
    return tree


def test_all_attributes_of_a_path() -> None:
    info, data = entry("./a/f", b"data", mode=0o4751)
    info.uid, info.gid = 7, 80_000
    info.pax_headers = {"SCHILY.xattr.user.x": "1", "comment": "no attribute"}
    node, _ = entry("a/null", kind=tarfile.CHRTYPE, mode=0o666)
    node.devmajor, node.devminor = 1, 3

    tree = tree_of(
        [
            entry("./", kind=FOLDER),
            entry("./a/", kind=FOLDER, mode=0o1777),
            (info, data),
            (node, b""),
            entry("a/p", kind=tarfile.FIFOTYPE, mode=0o600),
            entry("a/l", kind=tarfile.SYMTYPE, to="../a/f"),
            entry("a/twin", kind=tarfile.LNKTYPE, to="./a/f"),
        ]
    )

    file = TreeEntry(
        kind="file",
        mode=0o4751,
        owner=(7, 80_000),
        size=4,
        sha256=hashlib.sha256(b"data").hexdigest(),
        xattrs=(("user.x", "1"),),
    )
    assert tree == {
        "a": TreeEntry(kind="folder", mode=0o1777, owner=(0, 0)),
        "a/f": file,
        "a/twin": file,
        "a/null": TreeEntry(kind="device", mode=0o666, owner=(0, 0), device=("char", 1, 3)),
        "a/p": TreeEntry(kind="pipe", mode=0o600, owner=(0, 0)),
        "a/l": TreeEntry(kind="link", mode=0o777, owner=(0, 0), link="../a/f"),
    }


def test_texts_are_kept_for_requested_paths() -> None:
    tree: dict[str, TreeEntry] = {}
    apply_layer(tree, io.BytesIO(tar_of([entry("a", b"1\xff"), entry("b", b"2")])), lambda path: path == "a")

    assert (tree["a"].text, tree["b"].text) == ("1\\xff", None)


LOWER = [
    entry("d", kind=FOLDER),
    entry("d/x", b"x"),
    entry("d/e", kind=FOLDER),
    entry("d/e/y", b"y"),
    entry("dd", b"z"),
]


@pytest.mark.parametrize(
    ("upper", "paths"),
    [
        ([entry("d/.wh.x")], "d d/e d/e/y dd"),
        ([entry(".wh.d")], "dd"),
        ([entry("./d/.wh.e")], "d d/x dd"),
        ([entry("d", kind=FOLDER), entry("d/new"), entry("d/.wh..wh..opq")], "d d/new dd"),
        ([entry("new"), entry(".wh..wh..opq")], "new"),
        ([entry("d/e", b"a file")], "d d/e d/x dd"),
        ([entry("dd/deep/file", b"")], "d d/e d/e/y d/x dd dd/deep dd/deep/file"),
        ([entry("d/x", kind=FOLDER, mode=0o700)], "d d/e d/e/y d/x dd"),
        ([entry("d/e", kind=FOLDER, mode=0o700)], "d d/e d/e/y d/x dd"),
    ],
)
def test_an_upper_layer_deletes_and_replaces(upper: list[Entry], paths: str) -> None:
    assert sorted(tree_of(LOWER, upper)) == sorted(paths.split())


def test_a_hard_link_to_a_file_of_a_lower_layer() -> None:
    tree = tree_of(LOWER, [entry("twin", kind=tarfile.LNKTYPE, to="d/x")])

    assert tree["twin"] == tree["d/x"]


def test_a_hard_link_to_nowhere_is_refused() -> None:
    """Other damage is in test_hostile_tars.py."""
    with pytest.raises(DAMAGED):
        tree_of([entry("a", kind=tarfile.LNKTYPE, to="nowhere")])


def test_a_single_layer() -> None:
    layer = [*LOWER, entry("d/.wh.old"), entry("d/e/.wh..wh..opq"), entry("l", kind=tarfile.SYMTYPE, to="dd")]

    found = layer_contents(io.BytesIO(tar_of(layer)), lambda path: path == "d/e/y")

    assert (found.files, found.bytes) == (3, 3)
    assert found.texts == {"d/e/y": "y"}
    assert found.deleted == ("d/old", "d/e/")


PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
PATHS = st.one_of(
    st.lists(PART, min_size=1, max_size=5).map("/".join),
    st.text("ab/c.", min_size=1, max_size=130).filter(lambda path: path.strip("/") == path),
)


@given(
    path=PATHS,
    mode=st.sampled_from([0o644, 0o755, 0o4755, 0o1777]),
    size=st.one_of(st.integers(0, 2**20), st.integers(8**11 - 2, 8**11 + 2)),
    mtime=st.integers(0, 8**11 - 1),
    directory=st.booleans(),
)
@example(path="a" * 99, mode=0o644, size=1, mtime=1, directory=True)
@example(path="a" * 100, mode=0o644, size=1, mtime=1, directory=False)
@example(path="ü", mode=0o644, size=8**11, mtime=1, directory=False)
def test_tars_of_the_standard_library(path: str, mode: int, size: int, mtime: int, directory: bool) -> None:
    """tarfile writes short, long, non-ASCII and too large names and numbers in each of its formats."""
    size = 0 if directory else size
    info = tarfile.TarInfo(path + "/" if directory else path)
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    info.mode, info.size, info.mtime = mode, size, mtime

    ours = header(path, mode=mode, size=size, mtime=mtime, directory=directory)
    assert ours == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


PINNED = "ead8a9358bfe68acd157fb918a7efc334b486c1f31bc5361d608091f769dc0e2"


def noise(length: int) -> bytes:
    return random.Random(7).randbytes(length // 2) + b"torch" * (length // 10)


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_the_blob_inflates_to_the_tar_with_right_digests(data: bytes, member: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MEMBER", member)
        blob, encoded = encode_bytes(data)

    assert gzip.decompress(blob) == data
    assert encoded.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert encoded.diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert (encoded.size, encoded.unpacked) == (len(blob), len(data))


def test_the_bytes_are_pinned() -> None:
    """If this test fails, the digests of all bases and overlays change. That must not happen by accident."""
    blob, _ = encode_bytes(noise(300_000))

    assert hashlib.sha256(blob).hexdigest() == PINNED


def test_the_bytes_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(2 * MEMBER + 12345)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = encode_bytes(data)[0]
    monkeypatch.setattr(os, "cpu_count", lambda: 64)

    assert encode_bytes(data)[0] == alone


def test_gzip_headers_have_no_file_name_time_or_system() -> None:
    blob, _ = encode_bytes(b"x" * 10)

    assert blob[:10] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])


def test_a_stream_with_short_reads_gives_the_same_bytes(tmp_path: Path) -> None:
    """A read from a pipe may return fewer bytes than requested."""

    class ShortReads(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 1, 70_001))

    data = noise(MEMBER + 5)

    assert encode(ShortReads(data), tmp_path / "blob") == encode_bytes(data)[1]
    assert (tmp_path / "blob").read_bytes() == encode_bytes(data)[0]


def test_another_version_of_the_encoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.deflate, "__version__", "0.8.0")

    with pytest.raises(ToolMissing, match=r"deflate 0\.9\.0 is required, but 0\.8\.0 is installed"):
        encode_bytes(b"")
