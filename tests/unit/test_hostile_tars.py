"""Layers by strangers: refused by one strict reader, or read as every other reader reads them.

`tests/hostile/tars.py` has the kinds. What `unpack` takes, GNU tar, bsdtar, umoci (Go) and Python's tarfile
unpack to the same tree; what it refuses leaves nothing behind, within the folder and outside of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import needs
from tests.fuzz import tar_target
from tests.fuzz.source import Decisions
from tests.hostile.tars import GOOD, GROUPS, TARS, Tar
from tests.readers import CannotRead, run
from tests.roots import minimal_layout
from tests.tar_readers import TAR_READERS, comparable
from tests.trees import Tree, differences, tree_of_folder
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.read_tar import DAMAGED, apply_layer
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.oci.validate.tar import TarInspector

SEED = 20261123
REFUSED = {name: tar for name, tar in TARS.items() if tar.reason}
# OCI knows these; an image of ours never has them, and `run` does not unpack them.
SOUND_ELSEWHERE = {
    *("character device", "block device", "pipe", "whiteout", "whiteout of all"),
    *("folder over a link", "folder over a link, then through it", "folder over a file"),
    *("file over a folder", "link over a folder"),
    *("through a link below", "through an absolute link below", "through two links"),  # by `validate`
    "below a file of the layer below",
}


def blobs(folder: Path, layers: Sequence[bytes]) -> list[LayerBlob]:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, data in enumerate(layers):
        (path := folder / str(number)).write_bytes(data)
        digest = Digest(f"sha256:{hashlib.sha256(data).hexdigest()}")
        found.append(LayerBlob(path=path, diff_id=digest))
    return found


def unpacked(tmp_path: Path, tar: Tar) -> Path:
    """The root that ours makes, beside a folder `outside` with one file."""
    (tmp_path / "roots" / "outside").mkdir(parents=True)
    (tmp_path / "roots" / "outside" / "there").write_text("untouched")
    unpack(blobs(tmp_path / "blobs", tar.layers), tmp_path / "roots" / "root")
    return tmp_path / "roots" / "root"


def test_there_are_enough_kinds() -> None:
    assert len(REFUSED) >= 120
    assert len(GOOD) >= 20


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_layer_is_refused_and_nothing_stays(tmp_path: Path, name: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        unpacked(tmp_path, REFUSED[name])

    assert REFUSED[name].reason in caught.value.message
    assert "\n" not in caught.value.message
    assert [path.name for path in (tmp_path / "roots").iterdir()] == ["outside"]
    assert {path.name: path.read_text() for path in (tmp_path / "roots" / "outside").iterdir()} == {
        "there": "untouched"
    }


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - SOUND_ELSEWHERE))
def test_verify_and_diff_refuse_it_too(name: str) -> None:
    """By the same reader. Order and duplicates do not matter to `diff`: it shows what engines make of it."""
    faults: list[str] = []
    for layer in REFUSED[name].layers:
        inspector = TarInspector()
        inspector.inspect([layer])
        faults += inspector.faults()
    assert any(REFUSED[name].reason in fault for fault in faults), faults

    if name not in GROUPS["Links and order"]:
        with pytest.raises(DAMAGED):
            apply_layer({}, io.BytesIO(REFUSED[name].layers[-1]))


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("reader", TAR_READERS)
def test_what_is_taken_is_what_others_unpack(tmp_path: Path, name: str, reader: str) -> None:
    if reader == "bsdtar":
        needs.tool("bsdtar")
    ours = comparable(tree_of_folder(unpacked(tmp_path, GOOD[name])))
    (tmp_path / "theirs").mkdir()

    theirs = comparable(TAR_READERS[reader](GOOD[name].layers, tmp_path / "theirs"))

    assert differences(ours, theirs) == (
        [] if not _unnamed(name, reader) else ["no: missing", "no/where: missing"]
    )


@pytest.mark.parametrize("name", GOOD)
def test_what_is_taken_is_what_go_unpacks(tmp_path: Path, name: str) -> None:
    """umoci, by Go's archive/tar, as containers' own tools do."""
    needs.tool("umoci")
    ours = tree_of_folder(unpacked(tmp_path, GOOD[name]))
    layers = blobs(tmp_path / "blobs", GOOD[name].layers)
    for layer in layers:
        layer.path.write_bytes(gzip.compress(layer.path.read_bytes()))
    layout = minimal_layout(tmp_path / "layout", layers, {}, "it")

    run("umoci", "unpack", "--image", f"{layout}:it", tmp_path / "bundle")

    assert differences(comparable(ours), comparable(tree_of_folder(tmp_path / "bundle/rootfs"))) == []


def _unnamed(name: str, reader: str) -> bool:
    """Python's list has no folder that the tar does not name."""
    return name == "parent nowhere" and reader == "Python's tarfile"


@pytest.mark.parametrize("reader", ["GNU tar", "bsdtar"])
def test_random_tars_that_are_taken_are_what_others_unpack(tmp_path: Path, reader: str) -> None:
    """Of a thousand programs of the fuzzer, those that ours takes. The fuzzer itself asks tarfile."""
    if reader == "bsdtar":
        needs.tool("bsdtar")
    drawn = random.Random(SEED)
    taken = 0
    for number in range(1000):
        tar = tar_target.program(Decisions(drawn.randbytes(drawn.choice((20, 40, 80)))))
        (here := tmp_path / str(number)).mkdir()
        try:
            ours = comparable(tree_of_folder(unpacked(here, Tar(layers=(tar,)))))
        except VerificationFailed:
            continue
        (here / "theirs").mkdir()
        theirs = comparable(TAR_READERS[reader]([tar], here / "theirs"))
        assert differences(ours, theirs) == [], f"seed {SEED}, number {number}: {tar.hex()}"
        taken += 1
    assert taken > 50


def test_the_judge_notices_a_reader_that_sees_something_else(tmp_path: Path) -> None:
    """Solaris' extended header is one for Python's tarfile, and a file for GNU tar."""
    tar = TARS["Solaris' extended header"].layers[0].replace(b"../outside/x", b"beyond/the/x")
    trees: list[Tree] = []
    for number, name in enumerate(TAR_READERS):
        (tmp_path / str(number)).mkdir()
        try:
            trees.append(comparable(TAR_READERS[name]([tar], tmp_path / str(number))))
        except CannotRead:
            trees.append({})
    assert any(tree != trees[0] for tree in trees)
