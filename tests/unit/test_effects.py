"""A base is what its packages unpack to, and the effects of their scripts: the tar is the same every time."""

from __future__ import annotations

import gzip
import hashlib
import io
import marshal
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deb_files import COMPRESSIONS, Package, ar, link
from torchkiln.base import plain_tree as plain_trees
from torchkiln.base.effects import (
    Compile,
    Effect,
    Effects,
    document,
    effects_of,
    from_bytes,
    of_document,
    to_bytes,
    with_effects,
)
from torchkiln.base.plain_tree import Node, Spool, Tree, UnpackRules, open_deb, plain_tree, tree_of
from torchkiln.base.tree_tar import layer_tar, mmdebstrap_tar
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.tar_reader import EntryKind, IteratorFile, TarEntry, pieces_of

EPOCH = 1_700_000_000
BLOB = Digest(f"sha256:{'a' * 64}")
RULES = UnpackRules(epoch=EPOCH, dpkg_options=(), merged={})


@contextmanager
def spool() -> Iterator[Spool]:
    with tempfile.TemporaryFile(buffering=0) as file:
        yield Spool(file)


def unpacked(
    folder: Path, *packages: Package, rules: UnpackRules = RULES
) -> dict[str, tuple[TarEntry, bytes]]:
    """The plain tree of *packages*, with contents."""
    for package in packages:
        (folder / package.name).write_bytes(package.deb())
    with spool() as contents:
        debs = [package.file() for package in packages]
        return plain(plain_tree(debs, lambda deb: folder / deb.name, rules, contents))


def plain(tree: Tree) -> dict[str, tuple[TarEntry, bytes]]:
    return {path: (node.entry, b"".join(node.pieces())) for path, node in tree.items()}


def described(path: str, kind: EntryKind, size: int, target: str = "", mode: int = 0o644) -> TarEntry:
    return TarEntry(path, kind, mode, 0, 0, EPOCH, size, target, (0, 0), ())


def file(path: str, data: bytes, mode: int = 0o644) -> Node:
    return Node(described(path, "file", len(data), mode=mode), data)


# --- .deb files -------------------------------------------------------------------------------------


VALID = Package(name="one", files={"file": bytes(1000)}).deb()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an ar archive"),
        (b"!<arch>\n" + b"x" * 60, "malformed ar header at byte 8"),
        (VALID[:-40], "truncated"),
        (ar({"debian-binary": b"2.0\n"}), "it has no control.tar"),
        (ar({"control.tar.xz": b"", "data.tar.xz": b""}), "end"),
        (VALID.replace(b"data.tar.xz", b"data.tar.lz"), "it has no data.tar"),
        (VALID[:-60] + bytes(60), ""),
        (VALID, "checksum mismatch: sha256 "),
    ],
)
def test_a_malformed_package_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    """Also one with other bytes than the locked ones."""
    (tmp_path / "one.deb").write_bytes(data)
    sha256 = "0" * 64 if data == VALID else hashlib.sha256(data).hexdigest()

    with (
        pytest.raises(BuildFailed, match=f"one_1.0_amd64.deb: not a valid .deb file: .*{reason}"),
        open_deb(tmp_path / "one.deb", replace(Package(name="one").file(), sha256=sha256)) as (_, tar),
    ):
        list(pieces_of(tar))


def test_a_package_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_trees, "most_unpacked", lambda size: 100 * size)

    with pytest.raises(BuildFailed, match=r"data.tar unpacks to more than \d+ bytes"):
        unpacked(tmp_path, Package(name="one", files={"zeros": bytes(4 << 20)}))


# --- the plain tree ---------------------------------------------------------------------------------


def test_it_is_what_dpkg_unpacks(tmp_path: Path) -> None:
    """Top-level folders can be links, paths can be excluded, and times are never later than the epoch."""
    rules = UnpackRules(
        epoch=EPOCH - 9,
        dpkg_options=("path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright"),
        merged={"bin": "usr/bin"},
    )
    files = {
        "bin/": b"",
        "bin/a": {"data": b"program", "mode": 0o4755},
        "bin/b": link("./bin/a", hard=True),
        "usr/share/doc/one/": b"",
        "usr/share/doc/one/copyright": b"free",
        "usr/share/doc/one/changelog.gz": b"long",
        "etc/link": link("/usr/bin/a"),
    }
    control = {"postinst": b"#!/bin/sh\n", "md5sums": b"0  bin/a\n"}
    tree = unpacked(
        tmp_path,
        Package(name="one", files=files, control=control, fields={"Multi-Arch": "same"}),
        Package(name="two", files={"etc/link": b"another package's"}),
        rules=rules,
    )

    program = described("usr/bin/a", "file", 7, mode=0o4755)
    assert tree["usr/bin/a"] == (replace(program, mtime=EPOCH - 9), b"program")
    assert (tree["usr/bin/b"][0].kind, tree["usr/bin/b"][0].target) == ("hard link", "usr/bin/a")
    assert (tree["etc/link"][0].kind, tree["etc/link"][0].target) == ("link", "/usr/bin/a")
    assert {path for path in tree if "doc" in path} == {"usr/share/doc/one/copyright"}
    assert tree["var/lib/dpkg/info/one:amd64.md5sums"][1] == b"0  bin/a\n"
    assert b"/usr/share/doc/one/changelog.gz\n" in tree["var/lib/dpkg/info/one:amd64.list"][1]
    assert "bin" not in tree


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_hard_link_refers_to_the_first_name(tmp_path: Path, compression: str) -> None:
    """GNU tar writes the content where it finds the file first."""
    files = {"usr/": b"", "usr/z": b"x", "usr/a": link("usr/z", hard=True)}
    tree = unpacked(tmp_path, Package(name="one", files=files, compression=compression))

    assert (tree["usr/a"][0].kind, tree["usr/a"][1]) == ("file", b"x")
    link_entry = tree["usr/z"][0]
    assert (link_entry.kind, link_entry.target, link_entry.size) == ("hard link", "usr/a", 0)
    assert tree["var/lib/dpkg/info/one.list"][1] == b"/.\n/usr\n/usr/z\n/usr/a\n"


# --- effects ----------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "etc", "usr", "usr.conf", "ü", "x" * 60])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"text\n", "größer".encode(), b"\xff\x00", bytes(2000)])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A tree; its paths need not have parents."""
    tree: Tree = {}
    for path in draw(st.lists(paths, max_size=8, unique=True)):
        kind: EntryKind = draw(st.sampled_from(["file", "folder", "link"]))  # type: ignore[arg-type]
        data = draw(contents) if kind == "file" else b""
        entry = replace(
            described(path, kind, len(data), "target" if kind == "link" else ""),
            mode=draw(st.sampled_from([0o644, 0o755, 0o4711])),
            uid=draw(st.sampled_from([0, 42])),
            gid=draw(st.sampled_from([0, 101])),
            mtime=draw(st.sampled_from([EPOCH, EPOCH - 9])),
            xattrs=draw(st.sampled_from([(), (("security.capability", "\x01\udcff"),)])),
        )
        tree[path] = Node(entry, data)
    return tree


def nothing(_: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {}


def between(before: Tree, after: Tree, compiled: Compile = nothing) -> Effects:
    return effects_of(before, after, RULES, form="layer", blob=BLOB, compiled=compiled)


@given(trees(), trees())
def test_packages_and_effects_give_the_finished_tree(before: Tree, after: Tree) -> None:
    effects = between(before, after)

    assert plain(with_effects(before, effects, nothing)) == plain(after)
    assert from_bytes(to_bytes(effects), "effects") == effects
    assert of_document(document(effects), "record") == effects
    unchanged = between(before, dict(before))
    assert (unchanged.changed, unchanged.removed) == ((), ())


def test_a_changed_mode_does_not_repeat_the_content() -> None:
    before, after = (file("bin/su", b"\xff\xfe\xfd\xfc", mode) for mode in (0o755, 0o4755))

    expected = (Effect(path="bin/su", mode=0o4755, kept=True),)
    assert between({"bin/su": before}, {"bin/su": after}).changed == expected


def code(source: bytes, flags: int) -> bytes:
    compiled = marshal.dumps(compile(source, "x.py", "exec"))
    return MAGIC_NUMBER + flags.to_bytes(4, "little") + source_hash(source) + compiled


def compiles(sources: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {path: code(source, 1) for path, source in sources.items() if source != b"("}


def test_byte_code_is_compiled_again() -> None:
    """Only .pyc files that the compiler gives are left out; sources may be behind links."""
    before: Tree = {
        "lib/a.py": file("lib/a.py", b"a = 1"),
        "lib/b.py": file("lib/b.py", b"b = 2"),
        "etc/site.py": file("etc/site.py", b"c = 3"),
        "lib/c.py": Node(described("lib/c.py", "link", 0, "/etc/site.py")),
    }
    pyc = {name: f"lib/__pycache__/{name}.cpython-311.pyc" for name in "abc"}
    after = before | {
        pyc["a"]: file(pyc["a"], code(b"a = 1", 3)),
        pyc["b"]: file(pyc["b"], code(b"b = 2", 0)),  # with a time, as some packages' scripts make it
        pyc["c"]: file(pyc["c"], code(b"c = 3", 3)),
    }
    effects = between(before, after, compiles)

    kinds = {effect.path: effect.kind for effect in effects.changed}
    assert kinds == {pyc["a"]: "byte-code", pyc["b"]: "file", pyc["c"]: "byte-code"}
    assert plain(with_effects(before, effects, compiles)) == plain(after)


def changed(effects: Effects, **values: object) -> Effects:
    return replace(effects, changed=tuple(replace(effect, **values) for effect in effects.changed))  # type: ignore[arg-type]


ONE = between({}, {"a": file("a", b"\xff")})
CODE = changed(ONE, kind="byte-code", path="a/__pycache__/b.cpython-311.pyc", base64="")


@pytest.mark.parametrize(
    ("effects", "packages", "reason"),
    [
        (changed(ONE, base64="", kept=True), {}, "a is not in the packages"),
        (CODE, {}, "its source is not in the packages"),
        (CODE, {"a/b.py": file("a/b.py", b"(")}, "its source does not compile"),
        (changed(ONE, base64="/"), {}, "a: "),
    ],
)
def test_effects_of_other_packages_are_refused(effects: Effects, packages: Tree, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_effects(packages, effects, compiles)


MALFORMED = {
    "empty": b"",
    "text": b"text",
    "truncated": to_bytes(ONE)[:-4],
    "outside": to_bytes(changed(ONE, path="../a")),
    "absolute": to_bytes(changed(ONE, path="/a")),
    "large": gzip.compress(bytes(65 << 20)),
    "kind": to_bytes(changed(ONE, kind="pipe")),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        from_bytes(data, "effects.json.gz")


# --- tars -------------------------------------------------------------------------------------------

LONG = "long/" + "x" * 95
CONTENTS = {"etc/ü": 1, "etc.conf": 1, "etc/b": 513, LONG: 1, "usr/bin/a": 7, "empty": 0}


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
def test_the_tar_is_that_of_gnu_tar(tmp_path: Path) -> None:
    """With the options that mmdebstrap uses; mmdebstrap's /dev comes first."""
    root = tmp_path / "root"
    for path, size in CONTENTS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x" * size)
    os.link(root / "usr/bin/a", root / "usr/bin/b")
    os.link(root / LONG, root / "short")
    (root / "etc/link").symlink_to("t" * 101)
    (root / "etc/to").symlink_to("ü")
    (root / "usr/bin/a").chmod(0o4755)
    (root / "tmp").mkdir(mode=0o777)
    for place in (root, *root.rglob("*")):
        os.utime(place, (EPOCH - 5, EPOCH - 5), follow_symlinks=False)
    os.utime(root / "etc/b", (EPOCH + 100, EPOCH + 100))
    options = ["--sort=name", f"--mtime=@{EPOCH}", "--clamp-mtime", "--numeric-owner", "--one-file-system"]
    options += ["--format=pax", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"]
    theirs = subprocess.run(["tar", *options, "-C", root, "-c", "."], capture_output=True, check=True).stdout

    with spool() as contents:
        tree = tree_of(io.BytesIO(theirs), contents)
        ours = b"".join(mmdebstrap_tar(tree, EPOCH))

    assert ours[512:] == theirs
    assert tarfile.TarInfo.frombuf(ours[:512], "utf-8", "strict").name == "./dev"


@pytest.mark.parametrize("spooled", [True, False], ids=["on disk", "in memory"])
def test_a_content_is_read_in_pieces(spooled: bool) -> None:
    """Each of at most 1 MiB; the file has another content before it, and one behind it."""
    data = os.urandom((2 << 20) + 7)
    with spool() as contents:
        _, place, _ = (contents.add([part], len(part)) for part in (b"before", data, b"behind"))
        node = Node(described("a", "file", len(data)), place if spooled else data)
        pieces = list(node.pieces())

    assert b"".join(pieces) == data
    assert [len(piece) for piece in pieces] == [1 << 20, 1 << 20, 7]


@given(trees())
def test_a_layer_reads_back(tree: Tree) -> None:
    with spool() as contents:
        assert plain(tree_of(IteratorFile(layer_tar(tree)), contents)) == plain(tree)  # type: ignore[arg-type]
