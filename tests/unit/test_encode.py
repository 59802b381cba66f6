"""tar → blob: the same bytes everywhere, read by everybody."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import ToolMissing
from torchkiln.oci import encode as module
from torchkiln.oci.encode import MEMBER, encode, encode_bytes

PINNED = "ead8a9358bfe68acd157fb918a7efc334b486c1f31bc5361d608091f769dc0e2"


def noise(length: int) -> bytes:
    return random.Random(7).randbytes(length // 2) + b"torch" * (length // 10)


@given(st.binary(max_size=5000), st.integers(1, 700))
def test_the_blob_inflates_to_the_tar_and_tells_the_truth_about_both(data: bytes, member: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MEMBER", member)
        blob, encoded = encode_bytes(data)

    assert gzip.decompress(blob) == data
    assert encoded.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}"
    assert encoded.diff_id == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert (encoded.size, encoded.unpacked) == (len(blob), len(data))


def test_the_bytes_are_pinned() -> None:
    """When this fails, every base and overlay gets another digest: not by accident."""
    blob, _ = encode_bytes(noise(300_000))

    assert hashlib.sha256(blob).hexdigest() == PINNED


def test_no_core_count_shows_in_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(2 * MEMBER + 12345)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = encode_bytes(data)[0]
    monkeypatch.setattr(os, "cpu_count", lambda: 64)

    assert encode_bytes(data)[0] == alone


def test_headers_name_no_file_no_time_and_no_system() -> None:
    blob, _ = encode_bytes(b"x" * 10)

    assert blob[:10] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])


def test_a_stream_that_hands_over_little_at_a_time_gives_the_same(tmp_path: Path) -> None:
    """A pipe's reads end where its writer paused."""

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 1, 70_001))

    data = noise(MEMBER + 5)

    assert encode(Dribble(data), tmp_path / "blob") == encode_bytes(data)[1]
    assert (tmp_path / "blob").read_bytes() == encode_bytes(data)[0]


def test_another_version_of_the_encoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.deflate, "__version__", "0.8.0")

    with pytest.raises(ToolMissing, match=r"deflate 0\.9\.0 is required, but 0\.8\.0 is installed"):
        encode_bytes(b"")
