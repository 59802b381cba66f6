"""Many gzip members into one: the same content for every reader, nothing compressed anew, damage refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import deflate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from torchkiln.errors import ToolMissing
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci import encode, zlib_blocks
from torchkiln.oci.join import NotJoinable, join

TEXT = b"".join(f"{number:05} the quick brown fox\n".encode() for number in range(4000))
NOISE = random.Random(7).randbytes(200_000)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How zlib makes a stream; `flushes` cut the content and flush between."""

    level: int = 6
    strategy: int = zlib.Z_DEFAULT_STRATEGY
    wbits: int = 15
    memory: int = 8
    flushes: tuple[int, ...] = ()

    def deflate(self, content: bytes) -> bytes:
        """A raw deflate stream of *content*."""
        made = zlib.compressobj(self.level, zlib.DEFLATED, -self.wbits, self.memory, self.strategy)
        cuts = sorted(cut % (len(content) + 1) for cut in self.flushes)
        parts = [content[start:stop] for start, stop in zip((0, *cuts), (*cuts, len(content)), strict=True)]
        out = made.compress(parts[0])
        for number, part in enumerate(parts[1:]):
            out += made.flush(zlib.Z_FULL_FLUSH if number % 2 else zlib.Z_SYNC_FLUSH) + made.compress(part)
        return out + made.flush()


def member(content: bytes, stream: bytes | None = None) -> bytes:
    """A gzip member whose deflate stream is *stream*; written here by hand."""
    raw = Way().deflate(content) if stream is None else stream
    return (
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + raw + struct.pack("<II", zlib.crc32(content), len(content) % 2**32)
    )


def joined(blob: bytes) -> tuple[bytes, Blob]:
    """`join` in memory."""
    out = io.BytesIO()
    written = join(io.BytesIO(blob), out)
    return out.getvalue(), written


def only_member(blob: bytes) -> bytes:
    """The content of *blob*, which one decoder must take to its end."""
    inflater = zlib.decompressobj(31)
    content = inflater.decompress(blob)
    assert inflater.eof
    assert inflater.unused_data == b""
    return content


def holds(blob: bytes, content: bytes) -> None:
    """Joining *blob* gives one member of *content*, for three decoders, and the truth about it."""
    one, written = joined(blob)
    assert only_member(one) == content
    assert isal_zlib.decompress(one, wbits=31) == content
    assert deflate.gzip_decompress(one, len(content)) == content
    assert written == Blob(
        digest=Digest(f"sha256:{hashlib.sha256(one).hexdigest()}"),
        diff_id=Digest(f"sha256:{hashlib.sha256(content).hexdigest()}"),
        size=len(one),
        unpacked=len(content),
    )


ways = st.builds(
    Way,
    level=st.integers(0, 9),
    strategy=st.sampled_from(
        [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED]
    ),
    wbits=st.integers(9, 15),
    memory=st.integers(1, 9),
    flushes=st.lists(st.integers(0, 1 << 20), max_size=3).map(tuple),
)
contents = st.one_of(
    st.binary(max_size=300),
    st.integers(0, len(TEXT)).map(lambda end: TEXT[:end]),
    st.integers(0, len(NOISE)).map(lambda end: NOISE[:end]),
    st.integers(0, 300_000).map(bytes),
)


@given(members=st.lists(st.tuples(contents, ways), min_size=1, max_size=6), read=st.integers(10, 70_000))
def test_any_members_join(members: list[tuple[bytes, Way]], read: int) -> None:
    """Of any level, strategy and window, with flushes inside, however little of them is read at a time."""
    blob = b"".join(member(content, way.deflate(content)) for content, way in members)
    with patch("torchkiln.oci.join._READ", read), patch("torchkiln.oci.zlib_blocks._OUT", read):
        holds(blob, b"".join(content for content, _ in members))


def test_one_byte_at_a_time() -> None:
    """A file that hands over single bytes gives what one that hands over all does."""

    class Drops(io.BytesIO):
        def readinto(self, room: memoryview) -> int:  # type: ignore[override]
            return super().readinto(room[:1])

    blob = member(TEXT) + member(b"") + member(NOISE[:3000]) + member(bytes(70_000))
    out = io.BytesIO()

    assert join(Drops(blob), out) == joined(blob)[1]
    assert out.getvalue() == joined(blob)[0]


def fixed_block(literals: bytes, *, padding: int = 0) -> tuple[bytes, int]:
    """*literals* (144 to 255: nine bits each) as one final block of fixed codes; bits of its last byte.

    *padding* is what stands behind the stream in its last byte.
    """
    bits = [1, 1, 0]  # final; fixed codes
    for byte in literals:
        code = 0b110010000 + byte - 144
        bits += [code >> place & 1 for place in range(8, -1, -1)]
    bits += [0] * 7
    used = len(bits) % 8 or 8
    while len(bits) % 8:
        bits.append(padding)
    data = bytes(
        sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
    )
    return data, used


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("count", range(8))
def test_a_stream_may_end_at_any_bit(count: int, padding: int) -> None:
    """Eight lengths, eight bits; what stands behind the end in the last byte is not taken along."""
    content = bytes(range(200, 200 + count))
    stream, used = fixed_block(content, padding=padding)
    assert used == (10 + 9 * count - 1) % 8 + 1
    holds(member(content, stream) + member(TEXT) + member(content, stream), content + TEXT + content)


def test_the_eight_lengths_are_eight_bits() -> None:
    assert {fixed_block(bytes([200] * count))[1] for count in range(8)} == set(range(1, 9))


@pytest.mark.parametrize(
    "blob",
    [
        pytest.param(encode.encode_bytes(TEXT * 60)[0], id="ours, two members of libdeflate's"),
        pytest.param(b"".join(deflate.gzip_compress(NOISE, level) for level in (0, 1, 12)), id="libdeflate"),
        pytest.param(isal_zlib.compress(TEXT, 0, 31) + isal_zlib.compress(TEXT, 3, 31), id="isal"),
        pytest.param(member(b""), id="one empty member"),
    ],
)
def test_members_of_other_encoders_join(blob: bytes) -> None:
    holds(blob, gzip.decompress(blob))


def test_nothing_is_compressed_anew() -> None:
    """Stored bytes stay as they lie, deflated ones but for a bit; a member costs less than its frame did."""
    compressed = Way(level=9).deflate(TEXT)
    blob = member(NOISE, Way(level=0).deflate(NOISE)) + member(TEXT, compressed)

    one, _ = joined(blob)

    assert NOISE[:16_000] in one
    assert compressed[1:-1] in one
    assert len(one) <= len(blob)


def test_what_is_joined_may_be_joined_again() -> None:
    one, _ = joined(member(TEXT) + member(NOISE))

    holds(one + one, (TEXT + NOISE) * 2)


def test_progress_is_the_sources_bytes() -> None:
    blob = member(NOISE) * 20
    told: list[int] = []

    join(io.BytesIO(blob), io.BytesIO(), advanced=told.append)

    assert sum(told) == len(blob)
    assert len(told) > 1


def bad() -> Iterator[tuple[str, bytes, str]]:
    """Name, source, what is said of it."""
    good = member(TEXT) + member(NOISE)
    half = len(member(TEXT))
    flipped = bytearray(good)
    flipped[-8] ^= 1
    yield "a CRC-32 that lies", bytes(flipped), f"byte {half} is damaged: CRC-32 or size"
    flipped = bytearray(good)
    flipped[half - 1] ^= 1
    yield "a size that lies", bytes(flipped), "byte 0 is damaged: CRC-32 or size"
    yield "a size of another member", member(TEXT)[:-4] + b"\0\0\0\0", "CRC-32 or size"
    yield "no deflate", good + member(b"", b"\x07"), f"byte {len(good)} is damaged: invalid block type"
    yield "looks back beyond its beginning", member(b"", b"\x03\x02\0"), "too far back"
    yield "zeros behind", good + bytes(512), f"byte {len(good)} is no gzip member"
    yield "text behind", good + b"more of it, quite a lot", f"byte {len(good)} is no gzip member"
    yield "a byte behind", good + b"\x1f", f"byte {len(good)} is cut off"
    yield "another method", b"\x1f\x8b\x07" + good[3:], "byte 0 is no gzip member"
    yield "a name in the header", gzip.compress(b"")[:3] + b"\x08" + bytes(6) + b"name\0", "optional header"
    yield "empty", b"", "byte 0 is cut off"
    yield "bytes between stream and trailer", member(TEXT)[:-8] + b"!" + member(TEXT)[-8:], "CRC-32 or size"


@pytest.mark.parametrize(("blob", "says"), [pytest.param(b, s, id=n) for n, b, s in bad()])
def test_bad_sources_are_refused(blob: bytes, says: str) -> None:
    """With the place of the member and what is wrong with it."""
    with pytest.raises(NotJoinable, match=says):
        joined(blob)


def test_every_cut_is_noticed() -> None:
    """A source that ends anywhere but behind a member is refused."""
    small = member(b"abc" * 9) + member(b"\xff" * 70_000, Way(level=0).deflate(b"\xff" * 70_000))
    first = len(member(b"abc" * 9))
    for end in (*range(1, 120), *range(65_500, 65_700), *range(len(small) - 40, len(small))):
        if end != first:
            with pytest.raises(NotJoinable, match="cut off"):
                joined(small[:end])


@given(at=st.integers(0, len(TEXT)), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed_or_changes_nothing(at: int, bit: int) -> None:
    """What is accepted has the content that it had: only a time, flag or the padding bits do not count."""
    blob = bytearray(member(TEXT) + member(b"second"))
    blob[at % len(blob)] ^= 1 << bit
    try:
        one, _ = joined(bytes(blob))
    except NotJoinable:
        return
    assert only_member(one) == TEXT + b"second"


def test_gzip_and_python_in_a_pipe_read_it() -> None:
    """The witness reads the joined one to its end."""
    one, _ = joined(member(TEXT) + member(NOISE) + member(b""))
    done = subprocess.run(["gzip", "-dc"], input=one, capture_output=True, check=True)

    assert done.stdout == TEXT + NOISE
    assert done.stderr == b""


@given(
    first=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 2**34), min_size=2, max_size=2),
)
def test_crcs_combine_over_any_length(first: int, lengths: list[int]) -> None:
    """Also above 4 GiB: that of two runs of zeros one after the other is that of their sum."""

    def zeros(crc: int, count: int) -> int:
        """*crc* when *count* zeros follow: x^8n times it, of RFC 1952's polynomial, by squaring."""
        state, power = crc ^ 0xFFFFFFFF, 1 << 31 >> 8
        while count:
            if count & 1:
                state = times(state, power)
            power, count = times(power, power), count >> 1
        return state ^ 0xFFFFFFFF

    def times(a: int, b: int) -> int:
        product = 0
        for place in range(31, -1, -1):
            product ^= b if a >> place & 1 else 0
            b = b >> 1 ^ (0xEDB88320 if b & 1 else 0)
        return product

    assert zeros(0, 5) == zlib.crc32(bytes(5))
    for length in lengths:
        assert isal_zlib.crc32_combine(first, zeros(0, length), length) == zeros(first, length)


def test_a_system_without_zlib_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    zlib_blocks._library.cache_clear()
    monkeypatch.setattr(zlib_blocks, "_USUAL", ())
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    try:
        with pytest.raises(ToolMissing, match="zlib is not installed"):
            joined(member(b""))
    finally:
        zlib_blocks._library.cache_clear()
