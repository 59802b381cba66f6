"""Tars are compressed with zstd and read, as by the zstd program; reading any frame needs little memory."""

from __future__ import annotations

import gzip
import io
import random
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oci_samples import digest, files, tar_of
from tests.programs import run_program
from tests.zstd_frames import SHAPES, program, run_frame
from torchkiln.errors import ToolMissing
from torchkiln.model.layer import LAYER_FORMATS, Blob
from torchkiln.oci import zstd
from torchkiln.oci.compression import COMPRESSIONS, format_of, of_format
from torchkiln.oci.layer import NotCompressible
from torchkiln.oci.opening import open_layer
from torchkiln.oci.validate import layer as inspect_module
from torchkiln.oci.validate.layer import GZIP_TYPE, LAYER_TYPES, TAR_TYPE, ZSTD_TYPE, inspect_layer
from torchkiln.oci.zstd import compress, open_zstd
from torchkiln.util.places import ROOT

NOISE = random.Random(7).randbytes(1_500_000)
TAR = tar_of(files(opt__noise=NOISE, opt__same=NOISE, opt__text=b"import torch\n" * 90_000))
PIECE = 1 << 20


def compressed(tar: bytes, source: io.RawIOBase | io.BytesIO | None = None) -> tuple[bytes, Blob]:
    out = io.BytesIO()
    written = compress(source or io.BytesIO(tar), out, unpacked=len(tar))  # type: ignore[arg-type]
    return out.getvalue(), written


class ShortReads(io.BytesIO):
    """A stream whose reads return fewer bytes than requested."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 1, 70_001) if size != -1 else -1)


def test_the_zstd_program_reads_our_frames(tmp_path: Path) -> None:
    """It finds one frame with length and checksum. Digests and sizes are correct."""
    blob, written = compressed(TAR)
    (tmp_path / "blob.zst").write_bytes(blob)
    listed = run_program(["zstd", "-lv", tmp_path / "blob.zst"], check=True)

    assert program(blob, "-d") == TAR
    assert (written.digest, written.diff_id) == (digest(blob), digest(TAR))
    assert (written.size, written.unpacked) == (len(blob), len(TAR))
    assert len(blob) < len(NOISE) + 100_000  # the noise occurs twice, 1.5 MB apart: the window covers it
    assert f"({len(TAR)} B)" in listed.stdout
    assert re.search(r"Check: XXH64", listed.stdout)


@pytest.mark.parametrize("tar", [b"", b"x", bytes(PIECE), TAR[:PIECE], TAR[: PIECE + 1]], ids=len)
def test_any_length_round_trips(tar: bytes, tmp_path: Path) -> None:
    blob, written = compressed(tar)
    (tmp_path / "blob").write_bytes(blob)

    with open_layer(tmp_path / "blob") as stream:
        assert stream.read() == tar
    assert program(blob, "-d") == tar
    assert written.diff_id == digest(tar)


def test_the_bytes_are_a_golden() -> None:
    """They depend on libzstd's version, level and window. A change gives every zstd image a new digest."""
    blob, _ = compressed(TAR)

    assert digest(blob) == "sha256:6743bc0048e8e12584b55cb850f5ad5787126dbf8226130e28308167635200ee"
    assert zstd.ENCODER == "zstd-1.5.7-level-3-long-26"


def test_the_size_of_reads_does_not_matter() -> None:
    """Another process gives the same bytes, too."""
    blob, _ = compressed(TAR)
    code = (
        "import io, sys; from torchkiln.oci.zstd import compress; tar = sys.stdin.buffer.read(); "
        "compress(io.BytesIO(tar), sys.stdout.buffer, unpacked=len(tar))"
    )
    subprocess_result = subprocess.run(
        [sys.executable, "-c", code], input=TAR, capture_output=True, check=True, cwd=ROOT
    ).stdout

    assert compressed(TAR, ShortReads(TAR))[0] == blob == subprocess_result


@pytest.mark.parametrize(("wrong", "message"), [(-1, "more"), (1, "less")])
def test_a_wrong_declared_length_is_refused(wrong: int, message: str) -> None:
    with pytest.raises(NotCompressible, match=f"it has {message} than {len(TAR) + wrong} bytes"):
        compress(io.BytesIO(TAR), io.BytesIO(), unpacked=len(TAR) + wrong)


def test_another_libzstd_is_refused() -> None:
    with patch.object(zstd.zstd, "zstd_version", "1.4.8"), pytest.raises(ToolMissing, match=r"1\.4\.8"):
        compressed(TAR)


@pytest.mark.parametrize("kind", SHAPES)
def test_frames_of_other_programs(kind: str, tmp_path: Path) -> None:
    """Both readers read complete frames. For other frames, the oracle has a fault and the reader an error."""
    tar, shape = tar_of(files(etc__motd=b"hi\n")), SHAPES[kind]
    path = tmp_path / "blob"
    path.write_bytes(shape.pack(tar))
    facts = inspect_layer(path, ZSTD_TYPE)

    assert facts.digest == digest(path.read_bytes())
    if not shape.fault:
        assert (facts.faults, facts.diff_id, facts.unpacked) == ((), digest(tar), len(tar))
        with open_zstd(path) as stream:
            assert stream.read() == tar
        return
    assert re.search(shape.fault, facts.faults[0]), facts.faults
    if path.stat().st_size:  # an empty file has no frame, and is no tar
        with pytest.raises((OSError, EOFError)), open_zstd(path) as stream:
            stream.read()


@pytest.mark.parametrize("read", [1, 3, 37])
def test_a_frame_may_begin_anywhere(read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its magic number may be split between two reads."""
    monkeypatch.setattr(inspect_module, "_READ", read)
    (tmp_path / "blob").write_bytes(
        b"".join(program(SMALL[at : at + 700]) for at in range(0, len(SMALL), 700))
    )
    facts = inspect_layer(tmp_path / "blob", ZSTD_TYPE)

    assert (facts.faults, facts.diff_id) == ((), digest(SMALL))


@given(cut=st.integers(1, 10_000), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_bytes_make_a_reader_fail(cut: int, at: int, flip: int) -> None:
    """A truncated or changed blob gives the tar or a file error, and no other exception."""
    blob = bytearray(BLOB)
    blob[at % len(blob)] ^= flip
    for bad in (bytes(blob), BLOB[: -(cut % len(BLOB)) or None]):
        try:
            with open_zstd(io.BytesIO(bad)) as stream:
                assert stream.read() == SMALL
        except (OSError, EOFError):
            pass


SMALL = tar_of(files(etc__motd=b"hello\n" * 300))
BLOB = compressed(SMALL)[0]


@pytest.mark.parametrize(
    ("called", "real_type", "fault"),
    [
        (GZIP_TYPE, "zstd", "wrong media type: .*gzip.*, but the blob is zstd"),
        (TAR_TYPE, "zstd", "wrong media type: .*tar'.*, but the blob is zstd"),
        (ZSTD_TYPE, "gzip", "wrong media type: .*zstd.*, but the blob is gzip"),
        (ZSTD_TYPE, "tar", "does not begin with a zstd frame"),
    ],
)
def test_a_wrong_media_type_is_reported(called: str, real_type: str, fault: str, tmp_path: Path) -> None:
    """The blob is read in its real format, and then checked as usual."""
    blob = {"zstd": program(SMALL), "gzip": gzip.compress(SMALL), "tar": SMALL}[real_type]
    (tmp_path / "blob").write_bytes(blob)
    facts = inspect_layer(tmp_path / "blob", called)

    assert re.search(fault, facts.faults[0])
    assert (facts.diff_id == digest(SMALL)) == (real_type != "tar")


MEASURE = """
import io, sys
from pathlib import Path
from torchkiln.oci.validate.layer import ZSTD_TYPE, inspect_layer
from torchkiln.oci.opening import open_layer
from torchkiln.oci.zstd import compress
def peak():
    (found,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(found) // 1024
path, read = Path(sys.argv[1]), 0
before = peak()
with open_layer(path) as stream:
    while piece := stream.read(1 << 20):
        read += len(piece)
opened = peak()
facts = inspect_layer(path, ZSTD_TYPE)
inspected = peak()
with open_layer(path) as stream, open("/dev/null", "wb") as out:
    compress(stream, out, unpacked=read)
print(read, facts.unpacked, opened - before, inspected - opened, peak() - inspected)
"""


def test_a_bomb_needs_little_memory(tmp_path: Path) -> None:
    """128 MiB of zeros, compressed to 4 KiB, are read, inspected and compressed again, piece by piece."""
    path = tmp_path / "bomb"
    path.write_bytes(run_frame(1_024))
    argv = [sys.executable, "-c", MEASURE, str(path)]
    message = run_program(argv, check=True, cwd=ROOT).stdout
    read, unpacked, opened, inspected, made = map(int, message.split())

    assert read == unpacked == 1 << 27
    assert max(opened, inspected) < 16, message  # MiB
    assert made < 100, message


def test_the_oracle_reads_each_compression() -> None:
    """Oracle and writers have separate tables, which must agree."""
    assert {compression.media_type for compression in COMPRESSIONS} == set(LAYER_TYPES)
    assert [of_format(name).media_type for name in LAYER_FORMATS] == [GZIP_TYPE, ZSTD_TYPE]
    assert [format_of([TAR_TYPE, kind]) for kind in (GZIP_TYPE, ZSTD_TYPE)] == list(LAYER_FORMATS)
