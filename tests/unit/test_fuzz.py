"""Short runs of the fuzzers find planted faults, and the oracle of the fuzzing campaign finds damage."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign.oracle import Oracle, Truth, fingerprint
from tests.fuzz import documents_target, fatbin_target, layer_target, pages_target, tar_target, zip_target
from tests.fuzz.__main__ import run
from tests.fuzz.oracle import installed
from tests.fuzz.source import Decisions
from tests.hostile import SPEC
from tests.layers import Item
from tests.needs import nightly
from tests.wheels import write_wheel
from torchkiln.util.places import ROOT

RUNS = {"documents": 200, "zip": 500, "layer": 500, "tar": 400, "pages": 500, "fatbin": 500}
NIGHT = 600 if os.environ.get("NIGHTLY") == "yes" else 0  # seconds of each fuzzer; 0: the number of runs


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize(
    "target",
    [zip_target, layer_target, tar_target, documents_target, pages_target, fatbin_target],
    ids=["zip", "layer", "tar", "documents", "pages", "fatbin"],
)
def test_the_initial_corpus(target: object, scratch: Path) -> None:
    """The compared readers agree on every input; some inputs are accepted, and some are refused."""
    found = {target.check(data, scratch) for data in target.corpus(scratch)}  # type: ignore[attr-defined]
    assert len(found) > 1
    assert found & {"accepted", "written"}


@given(data=st.binary(max_size=300))
def test_any_zip_with_false_headers(scratch: Path, data: bytes) -> None:
    """The result is an error, or the files that `zipfile` reads."""
    zip_target.judge(zip_target.program(Decisions(data), scratch), scratch)


@given(data=st.binary(max_size=400))
def test_any_order_of_files(scratch: Path, data: bytes) -> None:
    """The result is a collision error, or the requested files, as gzip and tarfile read them."""
    layer_target.check(data, scratch)


@given(data=st.binary(max_size=300))
def test_any_tar_with_false_headers(scratch: Path, data: bytes) -> None:
    """The result is an error, or the files that tarfile reads. No file is written outside of the folder."""
    tar_target.check(data, scratch)


@given(data=st.binary(max_size=200))
def test_any_changed_document(data: bytes) -> None:
    """The result is an error with a message, or the value that other JSON parsers read."""
    documents_target.judge(documents_target.program(Decisions(data)))
    documents_target.shape(Decisions(data))


@given(data=st.binary(max_size=200))
def test_any_page_of_an_index(scratch: Path, data: bytes) -> None:
    """The result is an error with a message, or the files that pypi_simple finds on the page."""
    pages_target.check(data, scratch)


# A run needs two seconds of CPU time, mostly to instrument the modules. NIGHTLY=yes runs all fuzzers.
# In the tests above, `make test` gives each fuzzer its initial corpus and changed inputs.
@pytest.mark.proof
@pytest.mark.parametrize(
    ("target", "runs"),
    [pytest.param(name, runs, marks=[] if name == "documents" else [nightly]) for name, runs in RUNS.items()],
)
def test_some_seconds_of_atheris(target: str, runs: int) -> None:
    """The run is guided by coverage and has a fixed seed."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install atheris, which has builds for Python 3.11 to 3.13")
    figures = run(target, seed=1, runs=-1 if NIGHT else runs, seconds=NIGHT)
    assert figures["crashes"] == 0, figures.get("stderr")
    assert int(figures["runs"]) >= runs
    assert int(figures["features"]) > 50


def test_every_fuzzer_runs_at_night() -> None:
    names = {path.name.removesuffix("_target.py") for path in (ROOT / "tests/fuzz").glob("*_target.py")}
    assert names == RUNS.keys()


def test_a_reader_that_disagrees_is_detected(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer stops if two readers disagree about a byte or a file."""
    wheel = write_wheel(SPEC, scratch / "seed").read_bytes()
    assert zip_target.judge(wheel, scratch) == "accepted"
    true = installed(wheel)
    path = next(path for path in true if path.endswith("lib.so"))
    wrong_readers = (
        {**true, path: Item(kind="file", mode=0o755, data=true[path].data + b"x")},
        {**true, path: Item(kind="file", mode=0o644, data=true[path].data)},
        {name: item for name, item in true.items() if name != path},
        {**true, f"{path}x": true[path]},
    )
    for wrong in wrong_readers:
        monkeypatch.setattr(zip_target, "installed", lambda _, wrong=wrong: wrong)
        with pytest.raises(AssertionError):
            zip_target.judge(wheel, scratch)


# --- the campaign's oracle, with faults planted in a store made without our code -------------------


TAR = bytes(1024)
WHEEL = b"the bytes of a wheel" * 50
NAME = "x-1-py3-none-any.whl"
REF = "org.opencontainers.image.ref.name"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    """An oracle for a valid cache with one layer, wheel, pack and Python, and for a layout with one tag."""
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
    "record without its blob": (lambda o: blob(o).unlink(), "record:.*is missing"),
    "record cut": (lambda o: cut(only(o.cache / "records/layers")), "record:"),
    "wheel cut": (lambda o: cut(wheel(o)), "wheel:"),
    "byte of a wheel": (lambda o: flip(wheel(o)), "wheel:"),
    "part of another file": (part, "part:"),
    "pack cut": (lambda o: cut(only(o.cache / "bytecode")), "pack:"),
    "incomplete Python": (lambda o: (o.cache / "interpreters/a/python").unlink(), "interpreter:"),
    "tag without a manifest": (lambda o: tagged(o).unlink(), "tag: v1: its manifest"),
    "tag of an incomplete image": (lambda o: layer_in_layout(o).unlink(), "tag: v1:.*is missing"),
    "tag of a damaged image": (lambda o: flip(layer_in_layout(o)), "tag: v1:"),
    "index cut": (lambda o: cut(o.layout / "index.json"), "index:"),
}


def test_a_valid_store_has_no_faults(oracle: Oracle) -> None:
    assert oracle.healed() == ()


@pytest.mark.parametrize("kind", PLANTED)
def test_damage_is_found(kind: str, oracle: Oracle) -> None:
    """The oracle prints one line for each kind of damage."""
    plant, line = PLANTED[kind]
    plant(oracle)
    assert any(re.match(line, fault) for fault in oracle.faults()), oracle.faults()


def test_another_image_than_the_undisturbed_one(oracle: Oracle) -> None:
    """The store is valid, but the built image differs from that of a build without faults."""
    (oracle.layout / "index.json").write_text(json.dumps({"manifests": []}))
    assert any(fault.startswith("digest:") for fault in oracle.healed())
