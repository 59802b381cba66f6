"""Layers of thin images, whose libraries keep only the device code of chosen GPUs: changes and checks."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deflate
import pytest

from tests.cut_libraries import LIBRARY, SM_80, SM_90, UNKNOWN, code, expected, same, with_code
from tests.layers import SCHEME, as_locked, layer_of, pretended_code, sha256, tree_of_layer
from tests.pool_worker import pool_worker
from tests.programs import run_program
from tests.unit.test_recorded import task_of
from tests.unpublished import locked_wheel
from tests.wheels import File, WheelSpec, write_wheel
from torchkiln.device_code.fatbin import Span
from torchkiln.engine.worker import WheelInput, make_layer
from torchkiln.errors import BadWheel
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.recipe import DEVICE_CODE_RULE
from torchkiln.oci import encode
from torchkiln.oci.encode import MEMBER, members
from torchkiln.oci.layer import LayerWriter
from torchkiln.util.places import ROOT
from torchkiln.wheel.cut import Cut, dead_ranges
from torchkiln.wheel.source import Cancelled, WheelFile
from torchkiln.wheel.splice import splice

__all__ = ["pool_worker"]

PATH = "some/lib.so.1"
SPEC = WheelSpec(
    name="some",
    files=(
        File(path="some/__init__.py", data=b"def main():\n    return 0\n"),
        File(path=PATH, data=LIBRARY, mode=0o755),
        File(path="some/small.so", data=with_code([code("sm_80", 800_000), code("sm_90", 800)])),
        File(path="some/data.bin", data=LIBRARY + b"not a library"),
        File(path="some/host.so", data=with_code(text=1_500_000)),
        File(path="some/new.so", data=UNKNOWN),
    ),
    console=(("tool", "some:main"),),
)
CUT = DeviceCode(rule=DEVICE_CODE_RULE, gpus=("9.0",), wheels=("some",), own_use=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(SPEC, tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Cut]:
    with (tmp_path / "scratch").open("w+b") as scratch:
        yield Cut(device_code=CUT, scratch=scratch)


def test_only_dead_device_code_becomes_zeros(wheel: Path, cut: Cut) -> None:
    """All files are the same as in the full layer, except for the cut library and its hash in RECORD."""
    full = tree_of_layer(layer_of([wheel], code=pretended_code)[0])
    thin = tree_of_layer(layer_of([wheel], code=pretended_code, cut=cut)[0])

    record = f"{SCHEME.site}/some-1.0.dist-info/RECORD"
    assert thin.keys() == full.keys()
    assert {path for path in full if thin[path] != full[path]} == {f"{SCHEME.site}/{PATH}", record}
    assert thin[f"{SCHEME.site}/{PATH}"].mode == 0o755
    assert same(thin[f"{SCHEME.site}/{PATH}"].data, expected())
    rows = {
        path: (digest, size) for path, digest, size in csv.reader(io.StringIO(thin[record].data.decode()))
    }
    for path, (digest, size) in rows.items():
        if digest and not path.startswith(".."):
            data = thin[f"{SCHEME.site}/{path}"].data
            assert digest == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()[:43]}"
            assert size == str(len(data))
    assert rows[PATH][0]


def test_other_streams_are_spliced(wheel: Path, cut: Cut) -> None:
    """Libraries that need no cut are copied without recompression; the cut library is compressed again."""
    blob, _ = layer_of([wheel], cut=cut)
    data = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            start = info.header_offset + 30 + len(info.filename.encode())
            stream = data[start : start + info.compress_size]
            if info.filename.startswith("some/"):
                spliced = stream in blob
                assert spliced == (info.filename != PATH), info.filename
    zeroed = expected()
    for start in range(0, len(zeroed), MEMBER):
        compressed = deflate.gzip_compress(zeroed[start : start + MEMBER], encode.LEVEL) in blob
        assert compressed, start


@pytest.mark.parametrize(
    ("path", "changes", "is_cut"),
    [
        ("some.libs/libnvjpeg.so.12", {"own_use": False}, False),  # NVIDIA's library in another wheel
        ("some.libs/libnvjpeg.so.12", {"own_use": True}, True),
        (PATH, {"gpus": ("7.5",)}, False),  # no code for the GPU
        (PATH, {"gpus": ("8.0", "9.0")}, False),  # no dead code
    ],
)
def test_a_layer_in_which_nothing_is_cut_is_the_full_layer(
    tmp_path: Path, path: str, changes: dict[str, Any], is_cut: bool
) -> None:
    wheel = write_wheel(replace(SPEC, files=(File(path=path, data=with_code([SM_80, SM_90])),)), tmp_path)
    with (tmp_path / "scratch").open("w+b") as scratch:
        cut = Cut(device_code=replace(CUT, **changes), scratch=scratch)
        assert (layer_of([wheel], cut=cut)[1] != layer_of([wheel])[1]) is is_cut


def test_a_stored_library_is_cut_or_copied(tmp_path: Path, cut: Cut) -> None:
    """A library that is not compressed in the wheel is handled like a deflated library."""
    files = tuple(replace(file, stored=True) for file in SPEC.files)
    tree = tree_of_layer(layer_of([write_wheel(replace(SPEC, files=files), tmp_path)], cut=cut)[0])
    assert same(tree[f"{SCHEME.site}/{PATH}"].data, expected())
    assert same(tree[f"{SCHEME.site}/some/new.so"].data, UNKNOWN)


def test_a_recorded_layer_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """If the lock records wrong values, the layer is correct nevertheless."""
    truth = make_layer(task_of(wheel, tmp_path, device_code=CUT))
    blob = (tmp_path / "out").read_bytes()
    assert make_layer(task_of(wheel, tmp_path, device_code=CUT, recorded=truth)) == truth
    assert same((tmp_path / "out").read_bytes(), blob)
    wrong = replace(truth, size=1)
    assert make_layer(task_of(wheel, tmp_path, device_code=CUT, recorded=wrong)) == truth
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_a_recorded_layer_hashes_no_content_but_that_of_cut_libraries(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other files are not decompressed a second time."""
    truth = make_layer(task_of(wheel, tmp_path, device_code=CUT))
    inflated: list[str] = []
    from torchkiln.wheel import content, cut, splice

    real = content.inflate
    for module in (content, cut, splice):
        monkeypatch.setattr(
            module,
            "inflate",
            lambda file, entry, name: inflated.append(entry.name) or real(file, entry, name),
        )
    make_layer(task_of(wheel, tmp_path, device_code=CUT, recorded=truth))
    assert [name for name in inflated if ".dist-info" not in name] == [PATH, "some/host.so", "some/new.so"]


def test_other_wheels_of_a_layer_are_not_cut(wheel: Path, tmp_path: Path) -> None:
    """The lock names the wheels whose libraries may be cut."""
    other = write_wheel(
        WheelSpec(name="other", files=(File(path="other/lib.so", data=LIBRARY),)), tmp_path / "wheels"
    )
    work = task_of(wheel, tmp_path, device_code=CUT)
    make_layer(replace(work, inputs=(*work.inputs, WheelInput(wheel=locked_wheel(other), path=other))))
    tree = tree_of_layer((tmp_path / "out").read_bytes())
    assert same(tree[f"{SCHEME.site}/{PATH}"].data, expected())
    assert same(tree[f"{SCHEME.site}/other/lib.so"].data, LIBRARY)


def test_a_wheel_that_arrives_gives_the_same_layer(wheel: Path, tmp_path: Path) -> None:
    """The library that is not cut is read a second time while the wheel is still being downloaded."""
    data, part, piece = wheel.read_bytes(), tmp_path / "part", 9999
    with zipfile.ZipFile(wheel) as archive:
        after = archive.getinfo("some/new.so").header_offset
    read_again = threading.Event()

    def feed() -> None:
        with part.open("ab", buffering=0) as file:
            for start in range(0, len(data), piece):
                if start > after + 2 * piece:
                    assert read_again.wait(300)
                file.write(data[start : start + piece])

    from torchkiln.wheel.splice import SecondRead

    class Watched(SecondRead):
        def read_exactly(self, count: int) -> bytes:
            found = super().read_exactly(count)
            read_again.set()
            return found

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    work = task_of(wheel, tmp_path, device_code=CUT)
    item = replace(work.inputs[0], path=part, tail=data[-70_000:])
    with patch("torchkiln.wheel.splice.SecondRead", Watched):
        arrived = make_layer(replace(work, inputs=(item,)))
    thread.join()
    assert arrived == make_layer(work)


def damaged(wheel: Path, folder: Path, *, at: int) -> Path:
    """A copy of *wheel* with one changed byte in the library's stream."""
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(PATH)
    data[info.header_offset + 30 + len(PATH) + at] ^= 1
    place = folder / "damaged" / wheel.name
    place.parent.mkdir()
    place.write_bytes(data)
    return place


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "deflated"])
def test_a_damaged_library_is_refused(tmp_path: Path, cut: Cut, *, stored: bool) -> None:
    """Damage is found even in device code that would be replaced by zeros."""
    files = tuple(replace(file, stored=stored) for file in SPEC.files)
    bad = damaged(write_wheel(replace(SPEC, files=files), tmp_path), tmp_path, at=3_000_000)
    with pytest.raises(BadWheel, match=r"bad CRC-32 or size|invalid compressed data"):
        layer_of([bad], cut=cut)


def test_the_hash_in_the_wheels_record_is_that_of_the_original(tmp_path: Path, cut: Cut) -> None:
    """A changed library with an old RECORD is refused, even if the change is in code that would be zeroed."""
    changed = LIBRARY.replace(SM_80.data, SM_80.data[:-8] + b"changed!")
    assert changed != LIBRARY
    good = write_wheel(SPEC, tmp_path)
    bad = tmp_path / "bad" / good.name
    bad.parent.mkdir()
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as out:
        for info in source.infolist():
            out.writestr(info, changed if info.filename == PATH else source.read(info))
    with pytest.raises(BadWheel, match=f"hash of '{PATH}' does not match RECORD"):
        layer_of([bad], cut=cut)


def test_cutting_can_be_cancelled(wheel: Path, cut: Cut) -> None:
    """It can be cancelled even while a library is compressed and nothing is read from the wheel."""
    cancelled = threading.Event()

    def cancel(*arguments: Any) -> tuple[Span, ...]:
        cancelled.set()
        return dead_ranges(*arguments)

    layer = LayerWriter(io.BytesIO(), mtime=0)
    with (
        WheelFile(wheel, wheel.stat().st_size, cancelled=cancelled.is_set) as file,
        patch("torchkiln.wheel.cut.dead_ranges", cancel),
        patch.object(encode, "_member") as compress,
        pytest.raises(Cancelled),
    ):
        splice(file, as_locked(wheel), layer, SCHEME, source=None, bytecode=lambda: (), cut=cut)
    compress.assert_not_called()


def test_the_member_of_zeros_is_that_of_the_encoder() -> None:
    """A full member of zeros is compressed only once; every member has the encoder's bytes."""
    pieces = [bytes(MEMBER), bytes(MEMBER - 1) + b"1", bytes(MEMBER), bytes(MEMBER - 1), b""]
    for piece, (content, member) in zip(pieces, members(pieces), strict=True):
        assert same(content, piece)
        assert same(member, deflate.gzip_compress(piece, encode.LEVEL))


MEASURE = """
import sys, tempfile
from pathlib import Path
from tests.layers import add
from torchkiln.oci.layer import LayerWriter
from torchkiln.model.device_code import DeviceCode
from torchkiln.wheel.cut import Cut
with open("/dev/null", "wb") as out, tempfile.TemporaryFile() as scratch:
    code = DeviceCode(rule=1, gpus=("9.0",), wheels=("some",), own_use=False)
    cut = Cut(device_code=code, scratch=scratch)
    add(Path(sys.argv[1]), LayerWriter(out, mtime=0), locked=sys.argv[2], cut=cut)
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak)
"""


@pytest.mark.proof
def test_a_large_library_is_not_read_into_memory(tmp_path: Path) -> None:
    """Only a few members at a time are in memory."""
    peaks = []
    for megabytes in (2, 200):
        codes = [code(f"sm_{number}", megabytes << 18) for number in (70, 80, 90, 100)]
        wheel = write_wheel(
            WheelSpec(name="large", files=(File(path="l/l.so", data=with_code(codes), stored=True),)),
            tmp_path,
        )
        done = run_program([sys.executable, "-c", MEASURE, str(wheel), sha256(wheel)], cwd=ROOT, check=True)
        peaks.append(int(done.stdout) // 1024)
    assert peaks[1] - peaks[0] < 80, f"MiB: {peaks}"
