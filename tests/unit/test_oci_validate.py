"""The oracle: one planted fault of each kind is found, and told in words that name it."""

import ast
import gzip
import io
import json
import os
import random
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.oci_samples import BlobFolder, Member, digest, files, members_of, plan, tar_of
from torchkiln.cli.verify import split_target, verify
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.oci import inspect_layer as inspect_module
from torchkiln.oci import validate as module
from torchkiln.oci.inspect_layer import GZIP_TYPE, TAR_TYPE, inspect_layer
from torchkiln.oci.inspect_tar import TarInspector
from torchkiln.oci.layout import Layout, open_layout, write_image
from torchkiln.oci.validate import validate

BASE = files(etc__motd=b"hello\n", opt__venv__bin__python=b"#!")
OWN = (Member(name="opt/venv/x.py", data=b"x = 1\n"),)


def build(folder: Path, *tars: bytes, pack: Callable[[bytes], bytes] = members_of, tag: str = "a") -> Layout:
    """A layout of the base and *tars* on it."""
    store = BlobFolder(folder / "store")
    layers = [store.layer("base", tar_of(BASE))]
    layers += [store.layer(f"layer {number}", tar, pack=pack) for number, tar in enumerate(tars)]
    write_image(folder / "layout", plan(tag), layers, store.path)
    return open_layout(folder / "layout")


def words(layout: Layout, ref: str | None = None) -> list[str]:
    """The faults as a user reads them."""
    return [str(fault) for fault in validate(layout.path, ref)]


def edit(layout: Layout, what: str, change: Callable[[Any], object]) -> None:
    """Change the index, the manifest or the config, and make every digest above it right again."""
    image = layout.image("a")
    manifest = json.loads(image.manifest_path.read_bytes())
    if what == "manifest":
        change(manifest)
    elif what == "config":
        config = json.loads(image.config_path.read_bytes())
        change(config)
        data = json.dumps(config).encode()
        image.config_path.unlink()
        layout.blob(digest(data)).write_bytes(data)
        manifest["config"] |= {"digest": digest(data), "size": len(data)}
    data = json.dumps(manifest).encode()
    image.manifest_path.unlink()
    layout.blob(digest(data)).write_bytes(data)
    index = json.loads((layout.path / "index.json").read_bytes())
    index["manifests"][0] |= {"digest": digest(data), "size": len(data)}
    if what == "index":
        change(index)
    (layout.path / "index.json").write_text(json.dumps(index))


def test_a_sound_layout_has_no_fault(tmp_path: Path) -> None:
    """Two images that share a base, gzip of many members: nothing to say."""
    build(tmp_path, tar_of(OWN), pack=lambda tar: members_of(tar, 40))
    layout = build(tmp_path, tar_of(OWN), tar_of(files(srv__a=b"1")), tag="b")

    assert words(layout) == []
    assert words(layout, "b") == []


def test_it_shares_no_code_with_the_writers() -> None:
    """An oracle that asks the accused is none."""
    imported = set()
    for name in ("validate", "inspect_documents", "inspect_layer", "inspect_tar"):
        tree = ast.parse((Path(module.__file__).parent / f"{name}.py").read_text())
        imported |= {
            node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
        }
        imported |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}

    assert {name for name in imported if name.startswith("torchkiln")} <= {
        "torchkiln.errors",
        "torchkiln.oci.inspect_documents",
        "torchkiln.oci.inspect_layer",
        "torchkiln.oci.inspect_tar",
    }


# --- blobs ----------------------------------------------------------------------------------------


def replace(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Write a blob anew: it is read-only and another's too."""
    data = change(path.read_bytes())
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_byte_is_found_in_any_blob(tmp_path: Path) -> None:
    """In a layer, the config or the manifest: always a wrong digest, by the blob's name."""
    layout = build(tmp_path, tar_of(OWN))
    image = layout.image("a")
    for path in (image.layers[0].path, image.config_path, image.manifest_path):
        before = path.read_bytes()
        at = random.Random(1).randrange(len(before))
        replace(path, lambda data, at=at: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])

        assert any(f"wrong digest: the blob sha256:{path.name}" in text for text in words(layout))

        replace(path, lambda _, before=before: before)
    assert words(layout) == []


def test_a_missing_and_a_cut_blob_are_found(tmp_path: Path) -> None:
    """Gone, and shorter than the descriptor says."""
    layout = build(tmp_path, tar_of(OWN))
    first, second = layout.image("a").layers
    first.path.unlink()
    replace(second.path, lambda data: data[:-20])

    found = words(layout)

    assert f"a layers[0]: missing blob: {first.digest}" in found
    assert (
        f"a layers[1]: wrong size: {second.size} in the descriptor, the blob has {second.size - 20}" in found
    )
    assert "a layers[1]: the gzip member at byte 0 is cut off" in found


def test_blobs_that_nobody_needs_are_found(tmp_path: Path) -> None:
    """A stray blob and a writer's leaving, but only when the whole layout is asked."""
    layout = build(tmp_path)
    (layout.path / "blobs/sha256" / ("a" * 64)).write_bytes(b"12")
    (layout.path / "blobs/sha256/.half").write_bytes(b"123")

    assert words(layout) == [
        "blobs/sha256/.half: not a blob, 3 bytes",
        f"blobs/sha256/{'a' * 64}: unreferenced blob, 2 bytes",
    ]
    assert words(layout, "a") == []


# --- documents ------------------------------------------------------------------------------------

DOCUMENT_FAULTS: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "wrong size": ("manifest", lambda m: m["layers"][1].update(size=7), r"layers\[1\]: wrong size: 7 in the"),
    "wrong diff_id": (
        "config",
        lambda c: c["rootfs"]["diff_ids"].__setitem__(1, "sha256:" + "0" * 64),
        r"layers\[1\]: wrong diff_id: sha256:0{64} in the config, sha256:\w{64} in truth",
    ),
    "layer media type": (
        "manifest",
        lambda m: m["layers"][1].update(mediaType="application/x-tar"),
        r"layers\[1\]: wrong media type: 'application/x-tar'",
    ),
    "gzip called tar": (
        "manifest",
        lambda m: m["layers"][1].update(mediaType=TAR_TYPE),
        r"layers\[1\]: wrong media type: .*, but the blob is gzip",
    ),
    "config media type": (
        "manifest",
        lambda m: m["config"].update(mediaType="application/json"),
        "a config: wrong media type: 'application/json'",
    ),
    "manifest media type": (
        "manifest",
        lambda m: m.update(mediaType="text/plain"),
        "a manifest: wrong media type: 'text/plain'",
    ),
    "manifest schema": (
        "manifest",
        lambda m: m.update(schemaVersion=1),
        "a manifest: schemaVersion is 1, not 2",
    ),
    "no layers": ("manifest", lambda m: m.pop("layers"), "a manifest: layers is not a list"),
    "layer no object": (
        "manifest",
        lambda m: m["layers"].__setitem__(1, 3),
        r"a layers\[1\]: not a descriptor",
    ),
    "digest no digest": (
        "manifest",
        lambda m: m["layers"][1].update(digest="../../etc/passwd"),
        r"a layers\[1\]: '\.\./\.\./etc/passwd' is no sha256 digest",
    ),
    "history": (
        "config",
        lambda c: c["history"].pop(),
        "a config: history mismatch: 1 entries with a layer for 2",
    ),
    "diff_ids": ("config", lambda c: c["rootfs"]["diff_ids"].pop(), "a config: 1 diff_ids for 2 layers"),
    "rootfs": ("config", lambda c: c.update(rootfs=[]), "a config: rootfs is not of type layers"),
    "architecture": ("config", lambda c: c.pop("architecture"), "a config: architecture is missing"),
    "created": ("config", lambda c: c.update(created="yesterday"), "a config: created is 'yesterday'"),
    "created month": ("config", lambda c: c.update(created="2025-13-01T00:00:00Z"), "a config: created is"),
    "index to nowhere": (
        "index",
        lambda i: i["manifests"][0].update(digest="sha256:" + "0" * 64),
        "a: missing blob: sha256:0{64}",
    ),
    "index type": (
        "index",
        lambda i: i["manifests"][0].update(mediaType="x"),
        "a: wrong media type: 'x' in an",
    ),
    "index twice": (
        "index",
        lambda i: i["manifests"].append(i["manifests"][0]),
        "index.json: the name 'a' stands there twice",
    ),
    "index no list": ("index", lambda i: i.update(manifests={}), "index.json: manifests is not a list"),
    "index schema": (
        "index",
        lambda i: i.update(schemaVersion="2"),
        "index.json: schemaVersion is '2', not 2",
    ),
}


@pytest.mark.parametrize("kind", DOCUMENT_FAULTS)
def test_a_fault_in_a_document_is_found(tmp_path: Path, kind: str) -> None:
    """Wrong in itself, with every digest above it right."""
    what, change, pattern = DOCUMENT_FAULTS[kind]
    layout = build(tmp_path, tar_of(OWN))
    edit(layout, what, change)

    found = [fault for fault in words(layout) if not fault.startswith("blobs/")]

    assert len(found) == 1
    assert re.search(pattern, found[0])


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """Whoever mends one is not sent back for the next."""
    layout = build(tmp_path, tar_of((Member(name="/abs"),)))
    edit(layout, "config", lambda c: c.update(os="", history=[]))
    (layout.path / "oci-layout").write_text('{"imageLayoutVersion":"0.9"}')

    found = "\n".join(words(layout))

    for text in ("layout version '0.9'", "os is missing", "history mismatch", "an absolute name"):
        assert text in found


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"manifests":[[]]}'])
def test_a_broken_index_is_a_fault(tmp_path: Path, text: str) -> None:
    """Anything in index.json gives words, never a traceback."""
    layout = build(tmp_path)
    (layout.path / "index.json").write_text(text)

    assert any(found.startswith("index.json") for found in words(layout))


def test_a_nested_index_is_followed(tmp_path: Path) -> None:
    """As buildx writes them; what hangs below is checked too."""
    layout = build(tmp_path)
    inner = (layout.path / "index.json").read_bytes()
    layout.blob(digest(inner)).write_bytes(inner)
    entry = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": digest(inner),
        "size": len(inner),
    }
    (layout.path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    assert words(layout) == []

    next(iter(layout.path.glob("blobs/sha256/*"))).unlink()

    assert any("missing blob" in found for found in words(layout))


# --- layers ---------------------------------------------------------------------------------------


def raw(name: bytes, **fields: bytes) -> bytes:
    """One ustar header by hand, for what tarfile would not write."""
    values = {
        "mode": b"0000644\0",
        "uid": b"0000000\0",
        "gid": b"0000000\0",
        "size": b"00000000000\0",
    } | fields
    block = name.ljust(100, b"\0") + values["mode"] + values["uid"] + values["gid"] + values["size"]
    block += b"00000000000\0" + b" " * 8 + values.get("kind", b"0") + bytes(100)
    block += values.get("magic", b"ustar\0") + b"00"
    block = block.ljust(512, b"\0")
    check = values.get("check", b"%06o\0 " % sum(block))
    return block[:148] + check + block[156:]


END = bytes(1024)
F = Member(name="opt/f", data=b"1")
TAR_FAULTS: dict[str, tuple[bytes, str]] = {
    "absolute": (tar_of([Member(name="/etc/passwd")]), "'/etc/passwd': an absolute name"),
    "dot dot": (
        tar_of([Member(name="opt/../etc")]),
        r"'opt/\.\./etc': a name that leaves its folder by \.\.",
    ),
    "not plain": (tar_of([Member(name="opt//etc")]), "'opt//etc': not a plain name"),
    "long part": (tar_of([Member(name="x" * 256)]), "more than 255 bytes"),
    "twice": (tar_of([F, F]), "opt/f: twice in the layer"),
    "twice by dot": (tar_of([F, Member(name="./opt/f")]), "opt/f: twice in the layer"),
    "folder twice": (tar_of([Member(name="d/"), Member(name="d/")]), "d: twice in the layer"),
    "pax size": (
        raw(b"p", kind=b"x", size=b"00000000012\0") + b"10 size=x\n".ljust(512, b"\0") + raw(b"f") + END,
        "its size is 'x'",
    ),
    "pax size counts": (
        raw(b"p", kind=b"x", size=b"00000000013\0")
        + b"11 size=99\n".ljust(512, b"\0")
        + raw(b"f")
        + bytes(9),
        "the tar is cut off within f",
    ),
    "file and folder": (tar_of([F, Member(name="opt/f/")]), "opt/f: twice in the layer"),
    "parent missing": (
        tar_of([Member(name="no/where/f")]),
        "parent missing: no/where is not in this layer and not",
    ),
    "parent a file": (
        tar_of([Member(name="etc/motd/f")]),
        "parent missing: etc/motd is not in this layer and no folder in those below",
    ),
    "parent a file here": (tar_of([F, Member(name="opt/f/g")]), "opt/f/g: its parent opt/f is not a folder"),
    "parent later": (
        tar_of([Member(name="srv/f"), Member(name="srv/")]),
        "srv/f: comes before its parent folder srv",
    ),
    "hard link": (
        tar_of([Member(name="l", kind=tarfile.LNKTYPE)]),
        "l: a hard link to '', which is no file before",
    ),
    "empty link": (tar_of([Member(name="l", kind=tarfile.SYMTYPE)]), "l: a symbolic link to ''"),
    "fat folder": (
        raw(b"d/", kind=b"5", size=b"00000000001\0") + bytes(512) + END,
        "d: not a file, yet it has",
    ),
    "unknown type": (raw(b"s", kind=b"S") + END, "s: of unknown type b'S'"),
    "mode": (raw(b"m", mode=b"0100644\0") + END, "m: mode 100644 has more than permission bits"),
    "world": (tar_of([Member(name="w", mode=0o666)]), "w: mode 666 lets everybody write"),
    "owner": (tar_of([Member(name="o", uid=70_000)]), "o: owner 70000:0 is beyond"),
    "checksum": (
        raw(b"c", check=b"0000000\0") + END,
        r"cannot be read \(behind the start\): its checksum is wrong",
    ),
    "magic": (raw(b"c", magic=b"v7\0\0\0\0") + END, "it is not ustar"),
    "number": (raw(b"n", size=b"0000000000x\0") + END, "is not an octal number"),
    "negative": (raw(b"n", uid=b"\xff" * 8) + END, "below zero"),
    "no end": (tar_of([F])[:1024], "does not end with two zero blocks"),
    "half end": (tar_of([F])[:1536], "does not end with two zero blocks"),
    "behind the end": (tar_of([F])[:1536] + END + b"x" * 512, "bytes behind the end of the tar"),
    "one zero block": (raw(b"a") + bytes(512) + raw(b"b") + END, "bytes behind the end of the tar"),
    "cut in a file": (tar_of([F])[:700], "the tar is cut off within opt/f"),
    "cut in a header": (raw(b"a") + raw(b"b")[:100], "the tar is cut off within a header"),
    "pax": (
        raw(b"p", kind=b"x", size=b"00000000005\0") + b"9 a=b".ljust(512, b"\0") + END,
        "a pax header that",
    ),
    "empty": (b"", "does not end with two zero blocks"),
}


@pytest.mark.parametrize("kind", TAR_FAULTS)
def test_a_fault_in_a_tar_is_found(tmp_path: Path, kind: str) -> None:
    """Every digest is right; the tar itself is not."""
    tar, pattern = TAR_FAULTS[kind]

    found = words(build(tmp_path, tar))

    assert len(found) == 1
    assert found[0].startswith("a layers[1]: ")
    assert re.search(pattern, found[0])


GZIP_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "garbage": (
        lambda tar: members_of(tar, 3) + b"garbage",
        "trailing bytes: what is behind the last gzip member",
    ),
    "zeros": (lambda tar: members_of(tar) + bytes(9), "trailing bytes: what is behind the last gzip member"),
    "one byte": (lambda tar: members_of(tar) + b"\x1f", "trailing bytes"),
    "no gzip": (lambda tar: tar, r"what is at the start \(byte 0\) is no gzip member"),
    "bad crc": (lambda tar: members_of(tar)[:-8] + bytes(8), "the gzip member at byte 0 is damaged"),
    "cut": (lambda tar: members_of(tar)[:-8], "the gzip member at byte 0 is cut off"),
    "cut in a head": (
        lambda tar: members_of(tar) + b"\x1f\x8b\x08",
        r"the gzip member at byte \d+ is cut off",
    ),
}


@pytest.mark.parametrize("kind", GZIP_FAULTS)
def test_a_fault_in_the_gzip_is_found(tmp_path: Path, kind: str) -> None:
    """Behind, before and within the members."""
    pack, pattern = GZIP_FAULTS[kind]

    found = "\n".join(words(build(tmp_path, tar_of(OWN), pack=pack)))

    assert re.search(pattern, found)


def test_a_smuggled_member_is_seen_as_tar(tmp_path: Path) -> None:
    """A whole gzip member behind the end of the tar is legal gzip; its bytes are not part of the tar."""
    found = words(
        build(tmp_path, tar_of(OWN), pack=lambda tar: members_of(tar) + gzip.compress(b"smuggled" * 64))
    )

    assert "a layers[1]: bytes behind the end of the tar" in found


def test_faults_are_counted_not_hoarded(tmp_path: Path) -> None:
    """A layer of ten thousand bad names costs twenty lines."""
    found = words(build(tmp_path, tar_of([Member(name=f"/{number}") for number in range(10_000)])))

    assert len(found) == 21
    assert found[-1] == "a layers[1]: and 9980 more faults"


names = st.lists(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=60),
    min_size=1,
    max_size=5,
).filter(lambda parts: not {".", ".."} & set(parts))


@given(
    chosen=st.lists(st.tuples(names, st.binary(max_size=1500)), max_size=6),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    step=st.integers(1, 2000),
)
def test_what_tarfile_reads_is_read_the_same(
    chosen: list[tuple[list[str], bytes]], form: int, step: int
) -> None:
    """The names of any tar that Python writes, pax or GNU, fed in pieces of any size, without a fault."""
    members: dict[str, Member] = {}
    for parts, data in chosen:
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in members:
                members[folder] = Member(name=folder + "/")
        if "/".join(parts) not in members and not any(
            not members[above].name.endswith("/")
            for above in ("/".join(parts[:d]) for d in range(1, len(parts)))
        ):
            members["/".join(parts)] = Member(name="/".join(parts), data=data)
    # A file in the way of a folder would be a fault, and is another test's.
    kept = [
        m
        for name, m in members.items()
        if not any(
            above in members and not members[above].name.endswith("/")
            for above in (name[:at] for at, letter in enumerate(name) if letter == "/")
        )
    ]
    tar = tar_of(kept, form=form)
    inspector = TarInspector()

    for at in range(0, len(tar), step):
        inspector.feed(tar[at : at + step])
    inspector.close()

    assert inspector.faults() == ()
    assert inspector.wants() == []
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert inspector.others == {info.name for info in archive if not info.isdir()}
        assert inspector.folders == {info.name for info in archive if info.isdir()}


@given(data=st.binary(max_size=3000), at=st.integers(0, 4000), flip=st.integers(1, 255))
def test_no_bytes_make_the_inspector_stumble(data: bytes, at: int, flip: int) -> None:
    """Noise, and a tar with one byte changed: faults or none, no exception."""
    tar = bytearray(tar_of(BASE))
    tar[at % len(tar)] ^= flip
    for content in (data, bytes(tar)):
        inspector = TarInspector()
        inspector.feed(content)
        inspector.close()
        inspector.faults()


def test_facts_of_a_layer_are_those_of_python(tmp_path: Path) -> None:
    """Digest, diff_id and sizes; pieces that end anywhere, a member with a thousandfold ratio."""
    tar = tar_of(files(zeros=bytes(9 << 20), noise=random.Random(5).randbytes(700_000)))
    blob = members_of(tar, 7)
    (tmp_path / "blob").write_bytes(blob)

    facts = inspect_layer(tmp_path / "blob", GZIP_TYPE)

    assert (facts.digest, facts.diff_id, facts.faults) == (digest(blob), digest(tar), ())
    assert (facts.size, facts.unpacked) == (len(blob), len(tar))
    assert facts.others == {"zeros", "noise"}


def test_a_member_may_begin_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A magic number that a read cuts in two, and one byte that is left alone at the end."""
    monkeypatch.setattr(inspect_module, "_READ", 37)
    tar = tar_of(files(noise=random.Random(5).randbytes(3000)))
    blob = members_of(tar, 60)
    (tmp_path / "blob").write_bytes(blob)
    (tmp_path / "more").write_bytes(blob + b"\x1f")

    facts, more = (inspect_layer(tmp_path / name, GZIP_TYPE) for name in ("blob", "more"))

    assert (facts.digest, facts.diff_id, facts.faults) == (digest(blob), digest(tar), ())
    assert more.digest == digest(blob + b"\x1f")
    assert f"(byte {len(blob)})" in more.faults[0]


def test_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Big layouts are checked in processes: the same faults in the same order."""
    layout = build(tmp_path, tar_of([F, F]), TAR_FAULTS["absolute"][0])
    alone = words(layout)

    monkeypatch.setattr(module, "_WORTH_PROCESSES", 0)

    assert [str(fault) for fault in validate(layout.path, workers=2)] == alone
    assert len(alone) == 2


# --- the command ----------------------------------------------------------------------------------


def test_verify_prints_digest_and_name(tmp_path: Path) -> None:
    """stdout is data: a line an image."""
    layout = build(tmp_path, tar_of(OWN))

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert (done.exit_code, done.stdout) == (0, f"{layout.image('a').manifest} a\n")


def test_verify_tells_every_fault(tmp_path: Path) -> None:
    """Exit 12 by its exception, the faults in the message and, for machines, on stdout."""
    layout = build(tmp_path, tar_of([F, F]))

    done = CliRunner().invoke(verify, [str(layout.path), "--json"])

    assert isinstance(done.exception, VerificationFailed)
    assert "1 fault\na layers[1]: opt/f: twice in the layer" in done.exception.message
    assert json.loads(done.stdout) == {
        "layout": str(layout.path),
        "images": [],
        "faults": [{"where": "a layers[1]", "what": "opt/f: twice in the layer"}],
    }


def test_verify_knows_a_slip_from_a_fault(tmp_path: Path) -> None:
    """An unknown name or folder is the user's, not the layout's."""
    layout = build(tmp_path)
    for target in (f"{layout.path}:b", str(tmp_path / "nowhere"), f"{tmp_path}/nowhere:a"):
        assert isinstance(CliRunner().invoke(verify, [target]).exception, ConfigError)


def test_verify_of_a_name_in_a_broken_layout_tells_the_faults(tmp_path: Path) -> None:
    """Not the first that the reader meets: all, as the oracle lists them."""
    layout = build(tmp_path)
    (layout.path / "index.json").write_text('{"manifests": 1}')

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert isinstance(done.exception, VerificationFailed)
    assert "schemaVersion is None" in done.exception.message
    assert "manifests is not a list" in done.exception.message


def test_a_target_may_hold_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder wins over a split; digests have a colon too."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("a:b")

    assert split_target("a:b") == (Path("a:b"), None)
    assert split_target("a:b:sha256:12") == (Path("a:b"), "sha256:12")
    assert split_target("c") == (Path("c"), None)
