"""Untrusted layers: our strict reader refuses them or reads them like other readers; it refuses bombs.

`tests/hostile/tars.py` has the kinds. What `unpack` accepts, GNU tar, bsdtar, umoci (Go) and Python's tarfile
unpack to the same tree; refused layers leave no file behind, inside or outside of the folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests import forked, needs
from tests.fuzz import tar_target
from tests.fuzz.source import Decisions
from tests.hostile.reading import refusal
from tests.hostile.tars import END, GOOD, GROUPS, TARS, Tar, file, head, octal, pax, record
from tests.needs import nightly
from tests.readers import TAR_READERS, CannotRead, comparable, run
from tests.roots import minimal_layout
from tests.trees import Tree, differences, tree_of_folder
from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci import read_tar, tar_reader
from torchkiln.oci.read_tar import DAMAGED, apply_layer
from torchkiln.oci.tar_reader import TarReader
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.oci.validate.layer import TarInspector

SEED = 20261123
REFUSED = {name: tar for name, tar in TARS.items() if tar.reason}
# OCI allows these; our images never contain them, and `run` does not unpack them.
SOUND_ELSEWHERE = {
    *("character device", "block device", "pipe", "whiteout", "opaque whiteout"),
    *("folder over a link", "folder over a link, then through it", "folder over a file"),
    *("file over a folder", "link over a folder"),
    *(
        "through a link of a lower layer",
        "through an absolute link of a lower layer",
        "through two links",
    ),  # `validate` accepts them
    "below a file of a lower layer",
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
    """The folder into which our reader unpacks; beside it is a folder `outside` with a file."""
    (tmp_path / "roots" / "outside").mkdir(parents=True)
    (tmp_path / "roots" / "outside" / "there").write_text("untouched")
    unpack(blobs(tmp_path / "blobs", tar.layers), tmp_path / "roots" / "root")
    return tmp_path / "roots" / "root"


def test_there_are_enough_kinds() -> None:
    assert len(REFUSED) >= 120
    assert len(GOOD) >= 20


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_layer_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(VerificationFailed) as caught:
        unpacked(tmp_path, REFUSED[name])

    assert REFUSED[name].reason in caught.value.message
    assert "\n" not in caught.value.message
    assert [path.name for path in (tmp_path / "roots").iterdir()] == ["outside"]
    assert {path.name: path.read_text() for path in (tmp_path / "roots" / "outside").iterdir()} == {
        "there": "untouched"
    }


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - SOUND_ELSEWHERE))
def test_verify_and_diff_refuse_a_hostile_layer(name: str) -> None:
    """They use the same reader. `diff` ignores order and duplicates: it compares what engines unpack."""
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
def test_accepted_layers_unpack_like_with_other_readers(tmp_path: Path, name: str, reader: str) -> None:
    if reader == "bsdtar":
        needs.tool("bsdtar")
    ours = comparable(tree_of_folder(unpacked(tmp_path, GOOD[name])))
    (tmp_path / "theirs").mkdir()

    expected = comparable(TAR_READERS[reader](GOOD[name].layers, tmp_path / "theirs"))

    assert differences(ours, expected) == (
        [] if not _unnamed(name, reader) else ["no: missing", "no/where: missing"]
    )


@pytest.mark.parametrize("name", GOOD)
def test_accepted_layers_unpack_like_with_go(tmp_path: Path, name: str) -> None:
    """umoci uses Go's archive/tar, as container engines do."""
    needs.tool("umoci")
    ours = tree_of_folder(unpacked(tmp_path, GOOD[name]))
    layers = blobs(tmp_path / "blobs", GOOD[name].layers)
    for layer in layers:
        layer.path.write_bytes(gzip.compress(layer.path.read_bytes()))
    layout = minimal_layout(tmp_path / "layout", layers, {}, "it")

    run("umoci", "unpack", "--image", f"{layout}:it", tmp_path / "bundle")

    assert differences(comparable(ours), comparable(tree_of_folder(tmp_path / "bundle/rootfs"))) == []


def _unnamed(name: str, reader: str) -> bool:
    """Whether to skip the comparison: tarfile does not list a folder that has no entry in the tar."""
    return name == "missing parent" and reader == "Python's tarfile"


def test_accepted_random_tars_unpack_like_with_other_readers(tmp_path: Path) -> None:
    """Those of 150 random tars that our reader accepts are compared. The fuzzer compares with tarfile."""
    needs.tool("bsdtar")
    drawn = random.Random(SEED)
    accepted = 0
    for number in range(150):
        tar = tar_target.program(Decisions(drawn.randbytes(drawn.choice((20, 40, 80)))))
        (here := tmp_path / str(number)).mkdir()
        try:
            ours = comparable(tree_of_folder(unpacked(here, Tar(layers=(tar,)))))
        except VerificationFailed:
            continue
        for reader in ("GNU tar", "bsdtar"):
            (here / reader).mkdir()
            expected = comparable(TAR_READERS[reader]([tar], here / reader))
            assert differences(ours, expected) == [], f"seed {SEED}, number {number}: {tar.hex()}"
        accepted += 1
    assert accepted > 20


def test_the_comparison_detects_a_reader_that_disagrees(tmp_path: Path) -> None:
    """Python's tarfile reads Solaris' extended header as a header; GNU tar reads it as a file."""
    tar = TARS["Solaris' extended header"].layers[0].replace(b"../outside/x", b"beyond/the/x")
    trees: list[Tree] = []
    for number, name in enumerate(TAR_READERS):
        (tmp_path / str(number)).mkdir()
        try:
            trees.append(comparable(TAR_READERS[name]([tar], tmp_path / str(number))))
        except CannotRead:
            trees.append({})
    assert any(tree != trees[0] for tree in trees)


# --- small layers that become large ----------------------------------------------------------------


MEBIBYTES = 400  # the process's limit; with torchkiln imported and no work done, the process needs 40
WAYS = ("unpack", "inspect", "diff")


def links(count: int) -> bytes:
    return b"".join(head(b"%d" % number, b"2", to=b"x") for number in range(count))


# Each layer, and its error message if the limits are 300 entries and 1 MiB; empty if it is accepted.
SMALL = {
    "entries": (links(300), ""),
    "one entry too many": (links(301), "more than 300 entries"),
    "names": (
        b"".join(pax(record("path", "/".join(["n" * 200] * 20) + str(n))) + head(b"x") for n in range(270)),
        "the names in the tar have more than 1 MiB",
    ),
    "attributes": (
        b"".join(pax(record("SCHILY.xattr.user.x", "v" * 600_000)) + head(b"%d" % n) for n in range(2)),
        "the names in the tar have more than 1 MiB",
    ),
    "zeros": (head(b"big", size=3 << 20) + bytes(3 << 20), "unpacks to more than"),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", SMALL)
def test_each_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    """The limits are lowered for this test; the layers below reach the real limits."""
    monkeypatch.setattr(tar_reader, "_TEXTS", 1 << 20)
    monkeypatch.setattr(tar_reader, "_MIN_UNPACKED", 2 << 20)
    monkeypatch.setattr(read_tar, "TREE_ENTRIES", 300)
    monkeypatch.setitem(TarReader.__init__.__kwdefaults__ or {}, "most", 300)
    content, words = SMALL[name]
    (tmp_path / "blob").write_bytes(gzip.compress(content + END, 1 if name != "zeros" else 9))

    message = refusal(how, tmp_path / "blob", f"sha256:{hashlib.sha256(content + END).hexdigest()}")

    assert words in message
    assert bool(words) == bool(message)


def repeated(part: bytes, count: int, *, before: bytes = b"", after: bytes = END) -> Iterator[bytes]:
    """A gzip file of *before*, *count* times *part*, and *after*. One member for each makes it fast."""
    yield gzip.compress(before, 1)
    member = gzip.compress(part, 9)
    for _ in range(count):
        yield member
    yield gzip.compress(after, 1)


def names() -> Iterator[bytes]:
    """Entries with 40,000 names of 2 KiB each, together 80 MiB."""
    for start in range(0, 40_000, 1000):
        yield gzip.compress(
            b"".join(
                pax(record("path", "/".join(["n" * 200] * 10) + str(number))) + head(b"x")
                for number in range(start, start + 1000)
            ),
            1,
        )
    yield gzip.compress(END)


def attributes() -> Iterator[bytes]:
    """70 files with 1 MiB of extended attributes each."""
    for number in range(70):
        yield gzip.compress(pax(record("SCHILY.xattr.user.x", "v" * 1_000_000)) + head(b"%d" % number), 1)
    yield gzip.compress(END)


ZEROS = bytes(64 << 20)
HUGE = head(b"big", size=octal(7 << 30, 12))
BOMBS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "entries": (lambda: iter([gzip.compress(links(510_000) + END, 1)]), "00000 entries"),
    "names": (names, "have more than 64 MiB"),
    "attributes": (attributes, "have more than 64 MiB"),
    "a file of zeros": (lambda: repeated(ZEROS, 112, before=HUGE), "unpacks to more than"),
    "zeros after the end": (lambda: repeated(ZEROS, 30, before=file(b"f") + END), "of zeros after the end"),
    "an extended header of a GiB": (
        lambda: repeated(ZEROS, 16, before=head(b"x", b"x", size=1 << 30)),
        "more than 1048576",
    ),
    "a long name of a GiB": (
        lambda: repeated(ZEROS, 16, before=head(b"x", b"L", size=1 << 30, form="gnu")),
        "more than 1048576",
    ),
    "members without content": (lambda: repeated(b"", 100_000, before=file(b"f")), ""),
}
DIFF_ID = f"sha256:{hashlib.sha256(file(b'f') + END).hexdigest()}"  # of the only accepted bomb


IN_TEST = {("attributes", "inspect"), ("members without content", "inspect")}
# `make test`: two by `inspect`; `make proof`: all by `inspect`; NIGHTLY=yes: the rest.
# `unpack` of 200,000 files would take minutes on a slow disk.
CASES = [
    pytest.param(
        name,
        how,
        marks=[]
        if (name, how) in IN_TEST
        else [pytest.mark.proof]
        if how == "inspect"
        else [pytest.mark.proof, nightly],
    )
    for name, how in itertools.product(BOMBS, WAYS)
    if (name, how) != ("entries", "unpack")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bombs' files by name; tests only read them."""

    @cache
    def make(name: str) -> Path:
        blob = tmp_path_factory.mktemp("bombs") / "blob"
        with blob.open("wb") as out:
            out.writelines(BOMBS[name][0]())
        return blob

    return make


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_bomb_is_refused_in_little_memory(
    tmp_path: Path, made: Callable[[str], Path], name: str, how: str
) -> None:
    words, blob = BOMBS[name][1], tmp_path / "blob"
    blob.hardlink_to(made(name))
    diff_id = "sha256:" + "0" * 64 if words else DIFF_ID

    done = forked.run((how, str(blob), diff_id), env=os.environ, target="tests.hostile.reading:main")

    assert done.returncode == 0, done.stderr
    message, peak = json.loads(done.stdout)
    assert words in message
    assert bool(words) == bool(message)
    assert "\n" not in message
    assert peak < MEBIBYTES
    assert not any(path.name.startswith(".root") for path in tmp_path.iterdir())
