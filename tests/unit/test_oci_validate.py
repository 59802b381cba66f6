"""The oracle finds and names a planted fault of each kind in a layout."""

import ast
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oci_samples import OWN, Member, build, digest, files, members_of, tar_of, words
from torchkiln.oci.layout import Layout
from torchkiln.oci.validate import validate as module
from torchkiln.oci.validate.layer import TAR_TYPE


def edit(layout: Layout, what: str, change: Callable[[Any], object]) -> None:
    """Change the index, the manifest or the config, and update every digest that depends on it."""
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


def test_a_valid_layout_has_no_fault(tmp_path: Path) -> None:
    """It has two images that share a base, and a layer of many gzip members."""
    build(tmp_path, tar_of(OWN), pack=lambda tar: members_of(tar, 40))
    layout = build(tmp_path, tar_of(OWN), tar_of(files(srv__a=b"1")), tag="b")

    assert words(layout) == []
    assert words(layout, "b") == []


def test_the_oracle_shares_no_code_with_the_writers() -> None:
    """With shared code, an error of the writers would be an error of the oracle, which would not find it."""
    imported = set()
    for name in ("validate", "documents", "layer"):
        tree = ast.parse((Path(module.__file__).parent / f"{name}.py").read_text())
        imported |= {
            node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
        }
        imported |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}

    assert {name for name in imported if name.startswith("torchkiln")} <= {
        "torchkiln.errors",
        "torchkiln.model.progress",  # the protocol of progress reports
        "torchkiln.oci.validate.documents",
        "torchkiln.oci.validate.layer",
        "torchkiln.oci.tar_header",  # used by `unpack`, which reads layers; the writers have other code
        "torchkiln.oci.tar_names",
        "torchkiln.oci.tar_reader",
        "torchkiln.util.processes",  # runs functions in another process
        "torchkiln.util.strict_json",  # opens files and parses JSON; no writer uses it
        "torchkiln.oci.spelling",  # finds keys with the wrong case; no writer uses it
    }


# --- blobs ----------------------------------------------------------------------------------------


def replace(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a blob by a new file: the old one is read-only, and a hard link into the store."""
    data = change(path.read_bytes())
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_byte_is_found_in_any_blob(tmp_path: Path) -> None:
    """The message names the layer, config or manifest whose digest is wrong."""
    layout = build(tmp_path, tar_of(OWN))
    image = layout.image("a")
    for path in (image.layers[0].path, image.config_path, image.manifest_path):
        before = path.read_bytes()
        at = random.Random(1).randrange(len(before))
        replace(path, lambda data, at=at: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])

        assert any(f"wrong digest: the content of blob sha256:{path.name}" in text for text in words(layout))

        replace(path, lambda _, before=before: before)
    assert words(layout) == []


def test_a_missing_and_a_cut_blob_are_found(tmp_path: Path) -> None:
    """A cut blob is shorter than its descriptor states."""
    layout = build(tmp_path, tar_of(OWN))
    first, second = layout.image("a").layers
    first.path.unlink()
    replace(second.path, lambda data: data[:-20])

    found = words(layout)

    assert f"a layers[0]: missing blob: {first.digest}" in found
    assert (
        f"a layers[1]: wrong size: {second.size} in the descriptor, the blob has {second.size - 20}" in found
    )
    assert "a layers[1]: the gzip member at byte 0 is truncated" in found


def test_unneeded_blobs_are_found(tmp_path: Path) -> None:
    """An unused blob and a temporary file are found only if the complete layout is checked."""
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
        r"layers\[1\]: wrong diff_id: sha256:0{64} in the config, the layer has sha256:\w{64}",
    ),
    "layer media type": (
        "manifest",
        lambda m: m["layers"][1].update(mediaType="application/x-tar"),
        r"layers\[1\]: wrong media type: 'application/x-tar'",
    ),
    "gzip with the media type of a tar": (
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
    "layer is not an object": (
        "manifest",
        lambda m: m["layers"].__setitem__(1, 3),
        r"a layers\[1\]: not a descriptor",
    ),
    "invalid digest": (
        "manifest",
        lambda m: m["layers"][1].update(digest="../../etc/passwd"),
        r"a layers\[1\]: '\.\./\.\./etc/passwd' is not a sha256 digest",
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
    "manifest is missing": (
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
        "index.json: duplicate name: 'a'",
    ),
    "index is not a list": ("index", lambda i: i.update(manifests={}), "index.json: manifests is not a list"),
    "index schema": (
        "index",
        lambda i: i.update(schemaVersion="2"),
        "index.json: schemaVersion is '2', not 2",
    ),
}


@pytest.mark.parametrize("kind", DOCUMENT_FAULTS)
def test_a_fault_in_a_document_is_found(tmp_path: Path, kind: str) -> None:
    """The document is wrong, but every digest that depends on it is correct."""
    what, change, pattern = DOCUMENT_FAULTS[kind]
    layout = build(tmp_path, tar_of(OWN))
    edit(layout, what, change)

    found = [fault for fault in words(layout) if not fault.startswith("blobs/")]

    assert len(found) == 1
    assert re.search(pattern, found[0])


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    """A user can then correct all of them together."""
    layout = build(tmp_path, tar_of((Member(name="/abs"),)))
    edit(layout, "config", lambda c: c.update(os="", history=[]))
    (layout.path / "oci-layout").write_text('{"imageLayoutVersion":"0.9"}')

    found = "\n".join(words(layout))

    for text in ("layout version '0.9'", "os is missing", "history mismatch", "the name is absolute"):
        assert text in found


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"manifests":[[]]}'])
def test_a_broken_index_is_a_fault(tmp_path: Path, text: str) -> None:
    """No index.json causes a traceback."""
    layout = build(tmp_path)
    (layout.path / "index.json").write_text(text)

    assert any(found.startswith("index.json") for found in words(layout))


def test_a_nested_index_is_followed(tmp_path: Path) -> None:
    """buildx writes a nested index. The manifests in it are checked, too."""
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
