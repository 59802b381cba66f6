"""Layers that remove paths of lower layers are written, unpacked, compared and verified; hard links."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.roots import entry, layer, minimal_layout
from tests.trees import tree_of_folder
from torchkiln.errors import VerificationFailed
from torchkiln.model.plan import RemovalLayer
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layer_index import joined
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import apply_layer
from torchkiln.oci.unpack import LayerBlob, lower_root, unpack, unpacked_root
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store

NEW = "sha256:" + "1" * 64
FOLDER = tarfile.DIRTYPE


def removal(folder: Path, *paths: str) -> LayerBlob:
    """The layer that a RemovalLayer of *paths* gives."""
    blob, encoded = encode_bytes(tar.archive(RemovalLayer(title="without", paths=paths).files, mtime=7))
    path = folder / encoded.digest.removeprefix("sha256:")
    path.write_bytes(blob)
    return LayerBlob(path=path, diff_id=encoded.diff_id)


def below(folder: Path) -> LayerBlob:
    return layer(
        folder,
        entry("lib", kind=FOLDER),
        entry("lib/a", kind=FOLDER, mode=0o700),
        entry("lib/a/x.py", b"x"),
        entry("lib/a/deep", kind=FOLDER),
        entry("lib/a/deep/y", b"y"),
        entry("lib/ab", b"not a's"),
        entry("lib/link", kind=tarfile.SYMTYPE, to="a"),
    )


def engines_tree(*layers: LayerBlob) -> set[str]:
    """The paths that `read_tar` finds; it applies whiteouts as engines do."""
    found: dict[str, object] = {}
    for each in layers:
        with open_layer(each.path) as stream:
            apply_layer(found, stream)  # type: ignore[arg-type]
    return set(found)


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        (("lib/a",), {"lib", "lib/ab", "lib/link"}),
        (("lib/a/x.py", "lib/link"), {"lib", "lib/a", "lib/a/deep", "lib/a/deep/y", "lib/ab"}),
        (("lib",), set()),
    ],
)
def test_nothing_of_a_removed_path_is_left(tmp_path: Path, removed: tuple[str, ...], left: set[str]) -> None:
    layers = [below(tmp_path), removal(tmp_path, *removed)]
    indexes = unpack(layers, tmp_path / "root")
    above = {"lib"} if removed != ("lib",) else set()  # the folder that contains the whiteouts
    assert {path for path in tree_of_folder(tmp_path / "root") if path} == left | above
    assert set(joined(indexes)) - {""} == left | above
    assert engines_tree(*layers) == left | above


def test_a_removed_folder_can_come_back(tmp_path: Path) -> None:
    above = layer(tmp_path, entry("lib/a", kind=FOLDER), entry("lib/a/new", b"n"))
    layers = [below(tmp_path), removal(tmp_path, "lib/a"), above]
    indexes = unpack(layers, tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root/lib/a").iterdir()) == ["new"]
    assert (tmp_path / "root/lib/a").stat().st_mode & 0o777 == 0o755
    assert {path for path in joined(indexes) if path.startswith("lib/a/")} == {"lib/a/new"}


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("untouched")
    lower = layer(tmp_path, entry("out", kind=tarfile.SYMTYPE, to=str(outside)))
    unpack([lower, removal(tmp_path, "out")], tmp_path / "root")
    with pytest.raises(VerificationFailed, match="through a symbolic link"):
        unpack([lower, layer(tmp_path, entry("out/.wh.there"))], tmp_path / "other")
    assert list((tmp_path / "root").iterdir()) == []
    assert (outside / "there").read_text() == "untouched"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("lib/.wh.none")], "a whiteout of a path that no layer below contains"),
        ([entry("lib/.wh.a", b"data")], "not an empty file"),
        ([entry("lib/.wh.a", kind=FOLDER)], "not an empty file"),
        ([entry("lib/a/x.py"), entry("lib/.wh.a")], "the layer also contains lib/a"),
        ([entry("lib/.wh.a"), entry("lib/a/x.py")], "the layer also removes it"),
    ],
)
def test_whiteouts_that_programs_would_read_differently_are_refused(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], words: str
) -> None:
    with pytest.raises(VerificationFailed, match=words):
        unpack([below(tmp_path), layer(tmp_path, *entries)], tmp_path / "root")


def test_verify_knows_what_is_removed(tmp_path: Path) -> None:
    """A layer above adds a file to the removed folder, without an entry for the folder."""
    good = [
        below(tmp_path),
        removal(tmp_path, "lib/a/x.py"),
        layer(tmp_path, entry("lib/a/z", b"z", mode=0o644)),
    ]
    bad = [below(tmp_path), removal(tmp_path, "lib/a"), good[2]]
    found = {
        name: validate(minimal_layout(tmp_path / name, layers, {}, "tag"), "tag")
        for name, layers in {"good": good, "bad": bad}.items()
    }
    assert found["good"] == ()
    (fault,) = found["bad"]
    assert "parent missing: lib/a" in fault.what


def test_an_image_on_an_unpacked_one_has_hard_links_to_its_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    lower, more = below(tmp_path), [removal(tmp_path, "lib/a/x.py"), layer(tmp_path, entry("lib/new", b"n"))]
    plain = unpacked_root("sha256:" + "0" * 64, [lower], store)  # type: ignore[arg-type]
    unpacked: list[str] = []
    root = unpacked_root(NEW, [lower, *more], store, indexed=lambda diff_id, _: unpacked.append(diff_id))  # type: ignore[arg-type]
    whole = unpacked_root("sha256:" + "2" * 64, [lower, *more], store, reuse=False)  # type: ignore[arg-type]
    assert (root / "lib/ab").samefile(plain / "lib/ab")
    assert unpacked == [each.diff_id for each in more]
    assert tree_of_folder(root) == tree_of_folder(whole)
    assert (plain / "lib/a/x.py").read_text() == "x"
    assert not (whole / "lib/ab").samefile(plain / "lib/ab")


def test_only_an_image_with_all_lower_layers_is_used(tmp_path: Path) -> None:
    store, lower, other = Store(tmp_path / "cache"), below(tmp_path), layer(tmp_path, entry("f", b"1"))
    unpacked_root(NEW, [lower, other], store)  # type: ignore[arg-type]
    assert lower_root(store, [lower]) is None
    assert lower_root(store, [lower, other]) is None
    assert lower_root(store, [other, lower]) is None
    found = lower_root(store, [lower, other, lower])
    assert found is not None
    assert found[1] == 2


def test_the_whiteouts_in_a_layer(tmp_path: Path) -> None:
    data = tar.archive(RemovalLayer(title="without", paths=("a/b", "c")).files, mtime=7)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        found = [(one.name, one.size, one.mtime) for one in opened if one.isreg()]
    assert found == [(".wh.c", 0, 7), ("a/.wh.b", 0, 7)]
