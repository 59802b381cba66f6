"""The campaign's oracle sees each kind of damage; planted here, one at a time, in a store written by hand."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign.oracle import Oracle, Truth, fingerprint
from tests.campaign.scene import MARKER, survivors

TAR = bytes(1024)
WHEEL = b"the bytes of a wheel" * 50
NAME = "x-1-py3-none-any.whl"
REF = "org.opencontainers.image.ref.name"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    """A sound cache with one layer, one wheel, one pack and one Python, and a layout with one tag."""
    cache, layout = tmp_path / "cache", tmp_path / "out" / "dist"
    for folder in ("tmp", "records/layers", "bytecode", "interpreters/a", f"wheels/{digest(WHEEL)}"):
        (cache / folder).mkdir(parents=True)
    layer = gzip.compress(TAR, mtime=0)
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{digest(TAR)}"]}}).encode()
    parts = [{"digest": f"sha256:{digest(data)}", "size": len(data)} for data in (config, layer)]
    manifest = json.dumps({"config": parts[0], "layers": parts[1:]}).encode()
    for root, blobs in ((cache, [layer]), (layout, [layer, config, manifest])):
        (root / "blobs" / "sha256").mkdir(parents=True)
        for data in blobs:
            (root / "blobs" / "sha256" / digest(data)).write_bytes(data)
    tag = {"digest": f"sha256:{digest(manifest)}", "annotations": {REF: "v1"}}
    (layout / "index.json").write_text(json.dumps({"manifests": [tag]}))
    (cache / "records/layers/k.json").write_text(json.dumps(parts[1]))
    (cache / "bytecode/k.pack").write_bytes(b"code" + b"\xff" * 4 + hashlib.sha256(b"code").digest())
    (cache / "interpreters/a/python").write_text("#!")
    (cache / f"wheels/{digest(WHEEL)}/{NAME}").write_bytes(WHEEL)
    truth = Truth(
        wheels={NAME: WHEEL},
        manifest=f"sha256:{digest(manifest)}",
        interpreter=fingerprint(cache / "interpreters/a"),
        blobs=frozenset({digest(layer)}),
    )
    return Oracle(truth, cache, layout)


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:3] + bytes([data[3] ^ 1]) + data[4:])


def blob(oracle: Oracle) -> Path:
    return only(oracle.cache / "blobs/sha256")


def wheel(oracle: Oracle) -> Path:
    return only(only(oracle.cache / "wheels"))


def tagged(oracle: Oracle) -> Path:
    return oracle.layout / "blobs/sha256" / oracle.truth.manifest.removeprefix("sha256:")


def layer_in_layout(oracle: Oracle) -> Path:
    return oracle.layout / "blobs/sha256" / blob(oracle).name


def part(oracle: Oracle) -> None:
    wheel(oracle).with_name(NAME + ".part").write_bytes(WHEEL[:99] + b"?")


PLANTED: dict[str, tuple[Callable[[Oracle], None], str]] = {
    "blob cut": (lambda o: cut(blob(o)), "blob:"),
    "blob empty": (lambda o: os.truncate(blob(o), 0), "blob:"),
    "byte of a blob": (lambda o: flip(blob(o)), "blob:"),
    "blob without a digest": (lambda o: (blob(o).parent / "half").touch(), "foreign:"),
    "record of no blob": (lambda o: blob(o).unlink(), "record:.*is missing"),
    "record cut": (lambda o: cut(only(o.cache / "records/layers")), "record:"),
    "wheel cut": (lambda o: cut(wheel(o)), "wheel:"),
    "byte of a wheel": (lambda o: flip(wheel(o)), "wheel:"),
    "part of another file": (part, "part:"),
    "pack cut": (lambda o: cut(only(o.cache / "bytecode")), "pack:"),
    "half a Python": (lambda o: (o.cache / "interpreters/a/python").unlink(), "interpreter:"),
    "tag of nothing": (lambda o: tagged(o).unlink(), "tag: v1: its manifest"),
    "tag of a half image": (lambda o: layer_in_layout(o).unlink(), "tag: v1:.*is missing"),
    "tag of a damaged image": (lambda o: flip(layer_in_layout(o)), "tag: v1:"),
    "index cut": (lambda o: cut(o.layout / "index.json"), "index:"),
}


def test_a_sound_store_is_sound(oracle: Oracle) -> None:
    """The oracle accuses nobody of nothing."""
    assert oracle.healed() == ()


@pytest.mark.parametrize("kind", PLANTED)
def test_damage_is_seen(kind: str, oracle: Oracle) -> None:
    """Each kind by its own line."""
    plant, line = PLANTED[kind]
    plant(oracle)
    assert any(re.match(line, fault) for fault in oracle.faults()), oracle.faults()


@pytest.mark.parametrize(
    "place",
    [
        "cache/tmp/12-ab-layer",
        "cache/records/layers/.k.json.12.0123abcd",
        f"cache/wheels/{digest(WHEEL)}/{NAME}.part",
        "out/dist/.index.json.0123abcd",
        "out/dist/blobs/sha256/.00ff.0123abcd",
        "out/.v1.oci-archive.tar.12.0123abcd",
    ],
)
def test_what_an_accident_leaves_is_no_fault_but_is_seen(place: str, oracle: Oracle) -> None:
    """Allowed until the next run."""
    (oracle.cache.parent / place).write_bytes(WHEEL[:10])
    assert oracle.faults() == ()
    assert len(oracle.leftovers()) == 1
    assert any(fault.startswith("left over:") for fault in oracle.healed())


def test_another_image_than_the_undisturbed_one(oracle: Oracle) -> None:
    """Sound as it is, it is not what was asked for."""
    (oracle.layout / "index.json").write_text(json.dumps({"manifests": []}))
    assert any(fault.startswith("digest:") for fault in oracle.healed())


@pytest.mark.parametrize("known_by", ["environment", "command line"])
def test_a_process_that_lives_on(known_by: str, tmp_path: Path) -> None:
    """It is found by what it carries, and ended."""
    environ = {MARKER: "mark"} if known_by == "environment" else {}
    wait = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", wait, *([] if environ else [f"{tmp_path}/pack"])]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        assert len(survivors("mark", str(tmp_path), patience=0)) == 1
        assert process.wait(300) == -9
    assert survivors("mark", str(tmp_path), patience=0) == ()
