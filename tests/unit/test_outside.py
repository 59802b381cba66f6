"""Hostile files in an image are found from outside, before any program of the image runs."""

from __future__ import annotations

import base64
import hashlib
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from posixpath import normpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.roots import entry, layer
from torchkiln.model.digest import Digest
from torchkiln.oci.layer_index import IndexedEntry, LayerIndex, decoded, encoded, joined
from torchkiln.oci.unpack import LayerBlob, layer_index
from torchkiln.smoke.verification import LockedFiles, faults

SITE = "opt/venv/lib/python3.11/site-packages"
STDLIB = "usr/lib/python3.11"
ENV = {"PATH": "/opt/venv/bin:/usr/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib"}
WHEELS = {"torch": "2.7.1", "numpy": "2.4.6"}
Entries = Sequence[tuple[tarfile.TarInfo, bytes]]


def distribution(name: str, version: str, files: Mapping[str, bytes], *, keep: str = "") -> Entries:
    """The files of an installed wheel. RECORD has the hash of other content for the file *keep*."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: of the text\n".encode()
    all_files = {**files, f"{info}/METADATA": metadata}
    rows = []
    for path, data in all_files.items():
        digest = hashlib.sha256(b"original" if path == keep else data).digest()
        hashed = (
            ""
            if path.endswith(".pyc")
            else f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        )
        rows.append(f"{path},{hashed},{len(data) if hashed else ''}")
    rows.append(f"{info}/RECORD,,")
    all_files[f"{info}/RECORD"] = "\n".join(rows).encode()
    return [entry(normpath(f"{SITE}/{path}"), data, mode=0o644) for path, data in all_files.items()]


BASE = [
    entry(f"{STDLIB}/os.py", b"path = None\n"),
    entry("usr/bin/python3.11", b"\x7fELF"),
    entry("usr/lib/x86_64-linux-gnu/libc.so.6", b"\x7fELF"),
    entry("opt/venv/pyvenv.cfg", b"home = /usr/bin\n"),
    entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"),
    entry("usr/lib/python3/dist-packages/apt-2.6.dist-info/METADATA", b"Name: apt\nVersion: 2.6\n"),
]
TORCH = {
    "torch/__init__.py": b"original",
    "torch/__pycache__/x.cpython-311.pyc": b"code",
    "../../../bin/run": b"#!",
}
NUMPY = distribution(
    "numpy", "2.4.6", {"numpy/__init__.py": b"", "numpy/_vendor/a-1.dist-info/METADATA": b"Name: a\n"}
)
TOP = [
    entry("etc/profile.d/x.sh", b""),
    entry("opt/torchkiln/entrypoint", b"#!/bin/sh\n"),
    entry("etc/passwd", b""),
]


class Image:
    """A small image, whose layers are files of a layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sound = [self._blob(part) for part in self._parts([])]
        self.locked = [blob.diff_id for blob in self.sound[:-1]]

    def faults(
        self,
        *more: tuple[tarfile.TarInfo, bytes],
        at: int = -1,
        torch: Entries | None = None,
        env: Mapping[str, str] = ENV,
        recorded: bool = True,
    ) -> list[str]:
        """The faults if *more* entries are in the layer *at*. If *recorded*, the lock has the diff_ids."""
        blobs = [self._blob(part) for part in self._parts(more, at, torch)]
        layers = self.locked if recorded else [self.locked[0], None, None]
        locked = LockedFiles(layers=tuple(layers), wheels=WHEELS, env=ENV)
        tree = joined(_coded(layer_index(blob)) for blob in blobs)
        return list(faults(tree, [blob.diff_id for blob in blobs], env, locked))

    def _parts(
        self, more: Entries, at: int = -1, torch: Entries | None = None
    ) -> list[list[tuple[tarfile.TarInfo, bytes]]]:
        parts = [[*BASE], [*(torch or distribution("torch", "2.7.1", TORCH))], [*NUMPY], [*TOP]]
        parts[at] += more
        return parts

    def _blob(self, entries: Entries) -> LayerBlob:
        return layer(self.folder, *entries)


def _coded(index: LayerIndex) -> LayerIndex:
    assert decoded(encoded(index)) == index
    return index


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_sound_image_has_no_fault(image: Image, recorded: bool) -> None:
    assert image.faults(recorded=recorded) == []


HOSTILE_FILES = {
    ".pth": (f"{SITE}/a.pth", b"import a\n"),
    "sitecustomize in site-packages": (f"{SITE}/sitecustomize.py", b"import sys\n"),
    "sitecustomize in the standard library": (f"{STDLIB}/sitecustomize.py", b"import sys\n"),
    "sitecustomize of Debian": ("usr/lib/python3/dist-packages/sitecustomize.py", b""),
    "fake pytest": (f"{SITE}/pytest.py", b"def main(*_): return 0\n"),
    "lib-dynload": (f"{STDLIB}/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", b"\x7fELF"),
    "site of the user": ("root/.local/lib/python3.11/site-packages/usercustomize.py", b""),
    "other folder of the venv": ("opt/venv/lib64/python3.11/site-packages/a.py", b""),
    "program of the venv": ("opt/venv/bin/python3.99", b"#!/bin/sh\n"),
}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_file_in_a_folder_of_modules_that_no_record_has(image: Image, name: str, recorded: bool) -> None:
    path, data = HOSTILE_FILES[name]
    assert image.faults(entry(path, data), recorded=recorded) == [
        f"files in Python's module folders that no RECORD lists (1): {path}"
    ]


@pytest.mark.parametrize(
    "path",
    ["usr/bin/python3.11", "usr/lib/x86_64-linux-gnu/libc.so.6", f"{STDLIB}/os.py", "opt/venv/pyvenv.cfg"],
)
def test_a_file_of_the_base_that_is_replaced(image: Image, path: str) -> None:
    assert image.faults(entry(path, b"another")) == [
        f"files that replace those of the lock's layers (1): {path}"
    ]


def test_a_library_that_the_loader_preloads(image: Image) -> None:
    found = image.faults(entry("etc/ld.so.preload", b"/hostile.so\n"), entry("hostile.so", b"\x7fELF"))
    assert found == [
        "files that configure the loader, and are not in the lock's layers (1): etc/ld.so.preload"
    ]


EDITED = TORCH | {"torch/__init__.py": b"edited"}


def test_an_edited_file_differs_from_its_record(image: Image) -> None:
    edited = distribution("torch", "2.7.1", EDITED, keep="torch/__init__.py")
    assert image.faults(torch=edited, recorded=False) == [
        f"files that differ from their RECORD (1): {SITE}/torch/__init__.py"
    ]


def test_an_edited_file_with_an_edited_record_is_another_layer(image: Image) -> None:
    edited = distribution("torch", "2.7.1", EDITED)
    [sentence] = image.faults(torch=edited)
    assert sentence.startswith("layer 2 is sha256:")
    assert sentence.endswith(f"; in the lock: {image.locked[1]}")
    assert image.faults(torch=edited, recorded=False) == []  # this is not detected: see ADR 34


def test_an_edited_file_and_record_in_the_top_layer_replace_those_below(image: Image) -> None:
    edited = [item for item in distribution("torch", "2.7.1", EDITED) if "pyc" not in item[0].name]
    [sentence] = image.faults(*edited)
    assert sentence.startswith("files that replace those of the lock's layers (4): opt/venv/bin/run, ")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_further_distribution(image: Image, recorded: bool) -> None:
    """The distribution has a valid RECORD, and is a plugin of pytest."""
    hostile = distribution(
        "pytest_hostile",
        "1.0",
        {"hostile.py": b"", "pytest_hostile-1.0.dist-info/entry_points.txt": b"[pytest11]\n"},
    )
    assert image.faults(*hostile, recorded=recorded) == [
        "distributions that are not in the lock (1): pytest-hostile"
    ]


def test_a_distribution_twice_missing_or_of_another_version(image: Image) -> None:
    twice = distribution("Torch", "2.7.1", {})
    version = "distributions of a different version than in the lock, or installed twice (1): torch"
    assert image.faults(*twice) == [version]
    assert image.faults(torch=distribution("torch", "2.7.0", TORCH), recorded=False) == [version]
    missing = image.faults(torch=[entry("tmp/x", b"")], recorded=False)
    assert missing == ["distributions that are missing (1): torch"]


def test_a_file_of_a_record_that_is_missing(image: Image) -> None:
    less = [item for item in distribution("torch", "2.7.1", TORCH) if not item[0].name.endswith("/run")]
    assert image.faults(torch=less, recorded=False) == [
        "files in a RECORD that are missing (1): opt/venv/bin/run"
    ]


def test_code_without_a_hash_and_a_weak_hash(image: Image) -> None:
    for row in ("torch/a.so,,", "torch/a.so,md5=1B2M2Y8AsgTpgAmY7PhCfg,0", "torch/a.so,sha256=!,0"):
        entries = [*distribution("torch", "2.7.1", TORCH), entry(f"{SITE}/torch/a.so", b"", mode=0o644)]
        info, record = next(item for item in entries if item[0].name.endswith("RECORD"))
        entries[entries.index((info, record))] = entry(info.name, record + b"\n" + row.encode(), mode=0o644)
        assert image.faults(torch=entries, recorded=False) == [
            f"files that differ from their RECORD (1): {SITE}/torch/a.so"
        ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/opt/hostile.so"),
        ("LD_AUDIT", "/opt/hostile.so"),
        ("PYTEST_PLUGINS", "hostile"),
        ("PYTEST_ADDOPTS", "--collect-only"),
        ("PYTHONPATH", "/opt/hostile"),
        ("PYTHONSTARTUP", "/opt/hostile.py"),
    ],
)
def test_a_variable_that_the_lock_does_not_set(image: Image, name: str, value: str) -> None:
    assert image.faults(env=ENV | {name: value}) == [
        f"the image's config sets {name}={value}; in the lock: no such variable"
    ]


def test_the_texts_of_an_image_are_no_error_of_the_host(image: Image) -> None:
    """Errors of the host are recognized by such texts, and would make the run inconclusive."""
    text = "No space left on device"
    found = image.faults(entry(f"{SITE}/{text}.py", b""), env=ENV | {"X": text})
    assert (
        found[0]
        == "the image's config sets X=No\\x20space\\x20left\\x20on\\x20device; in the lock: no such variable"
    )
    assert not any(text in sentence for sentence in found)


def test_a_variable_of_another_value_and_none(image: Image) -> None:
    assert image.faults(env={"PATH": "/hostile:/usr/bin"}) == [
        "the image's config does not set LD_LIBRARY_PATH; in the lock: LD_LIBRARY_PATH=/usr/local/nvidia/lib",
        "the image's config sets PATH=/hostile:/usr/bin; in the lock: PATH=/opt/venv/bin:/usr/bin",
    ]


def test_ten_names_and_a_count(image: Image) -> None:
    [sentence] = image.faults(*(entry(f"{SITE}/m{number:02}.py", b"") for number in range(12)))
    assert sentence.startswith("files in Python's module folders that no RECORD lists (12): ")
    assert sentence.endswith(f"{SITE}/m09.py, and 2 more")


def test_another_number_of_layers(image: Image) -> None:
    tree = joined(layer_index(blob) for blob in image.sound)
    ids = [blob.diff_id for blob in image.sound]
    locked = LockedFiles(layers=tuple(image.locked[:-1]), wheels=WHEELS, env=ENV)
    assert faults(tree, ids, ENV, locked)[0] == "the image has 4 layers; in the lock: 3"


@given(
    st.text(alphabet="abc/._-0123456789\x1b\n", max_size=60),
    st.sampled_from(["", "sha256=", "x,y,z", "x" * 200_000]),
)
def test_any_record_is_read(text: str, row: str) -> None:
    """RECORD is untrusted text. It may cause faults, but no exception and no escape sequence in a message."""
    record = IndexedEntry(
        f"{SITE}/a-1.dist-info/RECORD", "file", text=f"{text},{row}\n{row}", sha256="0" * 64
    )
    locked = LockedFiles(layers=(), wheels={}, env={})
    for sentence in faults(joined([(record,)]), [Digest("sha256:" + "0" * 64)], {}, locked):
        assert sentence.isprintable()
