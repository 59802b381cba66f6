"""Layers one over the other make the tree that an engine makes of them."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest

from tests.roots import entry, tar_of
from torchkiln.model.contents import TreeEntry
from torchkiln.oci.read_tar import DAMAGED, apply_layer, layer_contents

Entry = tuple[tarfile.TarInfo, bytes]
FOLDER = tarfile.DIRTYPE


def tree_of(*layers: list[Entry]) -> dict[str, TreeEntry]:
    """What *layers*, lowest first, make together."""
    tree: dict[str, TreeEntry] = {}
    for layer in layers:
        apply_layer(tree, io.BytesIO(tar_of(layer)))
    return tree


def test_everything_that_belongs_to_a_path() -> None:
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


def test_a_text_is_kept_where_it_is_wanted() -> None:
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


@pytest.mark.parametrize(
    "data",
    [
        tar_of([entry("a", kind=tarfile.LNKTYPE, to="nowhere")]),
        tar_of([entry("a", b"x" * 600)])[:800],
        b"no tar" * 200,
        tar_of([entry("a", b"x")]).replace(b"0000755", b"zzzzzzz"),
    ],
    ids=["link to nowhere", "cut", "no tar", "header"],
)
def test_what_is_no_layer_is_refused(data: bytes) -> None:
    with pytest.raises(DAMAGED):
        apply_layer({}, io.BytesIO(data))


def test_one_layer_by_itself() -> None:
    layer = [
        *LOWER,
        entry("d/.wh.old"),
        entry("d/e/.wh..wh..opq"),
        entry("l", kind=tarfile.SYMTYPE, to="dd"),
    ]

    found = layer_contents(io.BytesIO(tar_of(layer)), lambda path: path == "d/e/y")

    assert (found.files, found.bytes) == (3, 3)
    assert found.texts == {"d/e/y": "y"}
    assert found.deleted == ("d/old", "d/e/")
