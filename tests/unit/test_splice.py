"""Layers of wheels: no stream is recompressed, digests are deterministic, all readers read the same tar."""

import gzip
import hashlib
import io
import json
import multiprocessing
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from isal import igzip

from tests.golden.write import LAYER, LAYER_WHEEL, layer_facts
from tests.layers import SCHEME, add, layer_of, pretended_code, sha256, tree_of_layer
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.engine import worker as build_worker
from torchkiln.errors import BadWheel
from torchkiln.model.recipe import PREFIX
from torchkiln.oci import layer as members
from torchkiln.oci.layer import LayerWriter
from torchkiln.util.places import ROOT

SPEC = WheelSpec(
    name="some",
    files=(
        File(path="some/__init__.py", data=b"def main():\n    return 0\n" * 50),
        File(path="some/lib.so", data=bytes(range(256)) * 3000, mode=0o755),
        File(path="some/stored.bin", data=b"kept as it is" * 20_000, stored=True),
        File(path="some/empty", data=b""),
        File(path=f"some/{'n' * 120}/ü.txt", data=b"long and not ASCII"),
        File(path="tool", data=b"#!python\n", scheme="scripts", mode=0o755),
    ),
    console=(("run", "some:main"),),
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_wheel(SPEC, tmp_path / "wheels")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of this process that a conversion worker has."""
    monkeypatch.setattr(build_worker, "_cancelled", multiprocessing.Event(), raising=False)
    monkeypatch.setattr(build_worker, "_progress", [0], raising=False)


def test_the_golden_wheel_has_the_golden_digest() -> None:
    """The digest depends only on the wheel and the recipe, not on the machine or its zlib."""
    assert layer_facts(LAYER_WHEEL) == json.loads(LAYER.read_text())


def test_a_tail_read_beforehand_changes_nothing(wheel: Path) -> None:
    """The tail may be a part of the zip directory, all of it, or the whole file."""
    size = wheel.stat().st_size
    assert {layer_of([wheel], tail=tail)[1] for tail in (0, 30, 2000, size)} == {layer_of([wheel])[1]}


def test_deflate_streams_are_those_of_the_wheel(wheel: Path) -> None:
    """Each complete stream is in the blob, alone in a gzip member."""
    blob, _ = layer_of([wheel])
    data = wheel.read_bytes()
    streams = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_DEFLATED or not info.file_size or "RECORD" in info.filename:
                continue
            if "/scripts/" in info.filename:  # rewritten
                continue
            start = info.header_offset + 30 + len(info.filename.encode())
            stream = data[start : start + info.compress_size]
            assert zlib.decompress(stream, -15) == archive.read(info)
            assert members.HEADER + stream + members.trailer(info.CRC, info.file_size) in blob
            streams += 1
    assert streams == 6


def test_a_layer_is_hardly_larger_than_its_wheel(wheel: Path) -> None:
    """For each file and folder, a header and padding of a little more than 512 bytes are added."""
    blob, written = layer_of([wheel])
    assert written.size == len(blob)
    assert len(blob) < wheel.stat().st_size + 30 * 1024


def test_every_reader_sees_the_tar_of_the_diff_id(wheel: Path) -> None:
    """The readers are GNU gzip, zlib, isal and Python's gzip. The blob's hash is the digest."""
    blob, written = layer_of([wheel], code=pretended_code)
    plain = [
        subprocess.run(["gzip", "-dc"], input=blob, capture_output=True, check=True).stdout,
        gzip.decompress(blob),
        igzip.decompress(blob),
        _by_zlib(blob),
    ]
    assert {f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in plain} == {written.diff_id}
    assert len(plain[0]) == written.unpacked
    assert len(plain[0]) % 512 == 0
    assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == written.digest


def _by_zlib(blob: bytes) -> bytes:
    """Decompress member by member: each ends where the next begins, and the last at the blob's end."""
    out = b""
    while blob:
        member = zlib.decompressobj(31)
        out += member.decompress(blob)
        assert member.eof
        blob = member.unused_data
    return out


def test_several_wheels_in_one_layer_share_identical_files(tmp_path: Path) -> None:
    """Two wheels may both have the same `nvidia/__init__.py`; different files of one path are refused."""
    common = File(path="nvidia/__init__.py", data=b"# shared\n")
    one, two = (
        write_wheel(
            WheelSpec(name=name, files=(common, File(path=f"nvidia/{name}.so", data=name.encode() * 99))),
            tmp_path,
        )
        for name in ("one", "two")
    )
    other = write_wheel(
        WheelSpec(name="other", files=(File(path="nvidia/__init__.py", data=b"# not\n"),)), tmp_path
    )

    tree = tree_of_layer(layer_of([one, two], code=pretended_code)[0])

    assert {f"{SCHEME.site}/nvidia/{name}" for name in ("__init__.py", "one.so", "two.so")} <= tree.keys()
    assert [n for n in tree if n.endswith(".pyc")] == [
        f"{SCHEME.site}/nvidia/__pycache__/__init__.cpython-311.pyc"
    ]
    with pytest.raises(BadWheel, match=r"^other-1.0-py3-none-any.whl: another wheel .*/nvidia/__init__.py$"):
        layer_of([one, other])


MEASURE = """
import sys
from pathlib import Path
from tests.layers import add
from torchkiln.oci.layer import LayerWriter
with open("/dev/null", "wb") as out:
    add(Path(sys.argv[1]), LayerWriter(out, mtime=0), locked=sys.argv[2])
# Not ru_maxrss, which a process inherits from the one that started it.
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "deflated"])
def test_a_large_entry_is_not_read_into_memory(tmp_path: Path, *, stored: bool) -> None:
    """One read covers all 64 kB of a stream of 64 MB, but only a few pieces are in memory."""
    peaks = []
    for megabytes in (1, 64):
        spec = WheelSpec(
            name="large", files=(File(path="l/l.so", data=bytes(megabytes << 20), stored=stored),)
        )
        wheel = write_wheel(spec, tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(wheel), sha256(wheel)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) // 1024)
    assert peaks[1] - peaks[0] < 16, f"MiB: {peaks}"


def test_a_full_disk_is_reported(wheel: Path) -> None:
    """The writer raises OSError, so a truncated layer is never used."""

    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    layer = LayerWriter(Full(), mtime=0)
    with pytest.raises(OSError, match="No space"):
        add(wheel, layer)


def test_the_prefix_is_part_of_the_layer() -> None:
    """This prefix is in the golden files and in the tests of this file."""
    assert (SCHEME.prefix, SCHEME.site) == (PREFIX, "opt/venv/lib/python3.11/site-packages")
