"""Decompression bombs, and data smuggled after the end of a stream."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.hostile.making import INFO, LIB, Kind, entries, field, info, points, stream, with_file, with_spec
from tests.rawzip import Raw, deflated, entry, read, write
from tests.wheels import File

SMUGGLED = gzip.compress(b"smuggled", mtime=0)
ZEROS = deflated(bytes(64 << 20))  # 64 MiB in 64 kB


def _bomb(declared: int) -> Kind:
    """An entry with 64 MiB of data, whose size in the zip directory is *declared*."""
    return Kind(field(stream=ZEROS, size=declared), "inflates to more than its")


def _kernel(raws: list[Raw]) -> list[Raw]:
    """Entries that overlap: they share one stream, so that a megabyte gives 4 GB."""
    first = replace(entry("bad/k0", b""), stream=ZEROS, size=64 << 20)
    return [
        first,
        *(replace(entry(f"bad/k{n}", b"", stored=True), central={"offset": 0}) for n in range(1, 64)),
        *raws,
    ]


def _declared_large(raws: list[Raw]) -> list[Raw]:
    """Sixteen entries, each with a declared size of 3 GB, which alone would be plausible."""
    giants = [replace(entry(f"bad/g{n}", b""), stream=ZEROS, size=3_000_000_000) for n in range(16)]
    return [*raws, *giants]


def _many(_: Path) -> bytes:
    """200,001 entries of minimal size."""
    return _many_entries()


@cache
def _many_entries() -> bytes:
    out, directory, count = bytearray(), bytearray(), 200_001
    for number in range(count):
        name = b"%06x" % number
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, *[0] * 7, 6, *[0] * 5, len(out)) + name
        out += struct.pack("<4s5H3L2H", b"PK\3\4", 20, *[0] * 7, 6, 0) + name
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(out))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(out) + len(directory), 1)
    short = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return bytes(out + directory + end + locator + short)


def _deep(raws: list[Raw]) -> list[Raw]:
    """60 files, each nested 1,000 folders deep; each folder needs a header in the layer."""
    return [*raws, *(entry(f"{n}/" + "/".join(["d"] * 1000), b"", stored=True) for n in range(60))]


def _scripts(raws: list[Raw]) -> list[Raw]:
    """70 scripts of one MiB; scripts are kept in memory until all launchers are known."""
    data = bytes(1 << 20)
    made = replace(entry("", data), name=b"")
    return [*raws, *(replace(made, name=f"bad-1.0.data/scripts/s{n}".encode()) for n in range(70))]


def _sized(name: str, size: int) -> Kind:
    """A metadata file of *size* zeros."""
    stop = f"{name}' is too large: {size} bytes, at most [0-9]+ are allowed"
    return Kind(
        entries(
            lambda raws: (
                [raw for raw in raws if not raw.name.endswith(f"/{name}".encode())]
                + [replace(entry(f"{INFO}/{name}", b""), stream=ZEROS, size=size)]
            )
        ),
        stop,
    )


BOMBS: dict[str, Kind] = {
    "bomb": _bomb(len(b"x") * 4500),
    "bomb with size 0": _bomb(0),
    "bomb with a size of one byte less": _bomb((64 << 20) - 1),
    "bomb by ratio": Kind(field(stream=ZEROS, size=2_000_000_000), "unpacks to .* times its own size"),
    "bomb by sum": Kind(entries(_declared_large), "unpacks to 48[0-9]+ bytes"),
    "bomb by overlap": Kind(entries(_kernel), "overlaps the previous entry"),
    "bomb by count": Kind(_many, "200001 entries, .* bytes; at most 200000 are allowed"),
    "bomb by folders": Kind(entries(_deep), "more than 50000 directories"),
    "bomb by scripts": Kind(entries(_scripts), "73400320 bytes of scripts"),
    "huge METADATA": _sized("METADATA", 65 << 20),
    "huge WHEEL": _sized("WHEEL", 65 << 20),
    "huge RECORD": _sized("RECORD", 4_000_000_000),
    "huge entry points": _sized("entry_points.txt", 65 << 20),
    "huge source": Kind(
        entries(lambda raws: [*raws, replace(entry("bad/huge.py", b""), stream=ZEROS, size=64 << 20)]),
        "'bad/huge.py' is too large: 67108864 bytes",
    ),
    "record of many lines": Kind(
        entries(
            lambda raws: [
                entry(f"{INFO}/RECORD", b"\n" * 500_000) if raw.name.endswith(b"/RECORD") else raw
                for raw in raws
            ]
        ),
        "invalid RECORD: too many lines",
    ),
    "smuggled member": Kind(stream(lambda s: s + SMUGGLED), "trailing data after its deflate stream"),
    "smuggled after 300 kB of zeros": Kind(
        stream(lambda s: s + bytes(300_000) + SMUGGLED), "trailing data after its deflate"
    ),
    "smuggled after an empty stream": Kind(
        entries(lambda raws: [*raws, replace(entry("bad/e", b""), stream=deflated(b"") + SMUGGLED)]),
        "trailing data after",
    ),
    "smuggled after a stored block": Kind(
        entries(lambda raws: [*raws, replace(entry("bad/e", b"x"), stream=b"\1\1\0\xfe\xffx" + SMUGGLED)]),
        "trailing data after",
    ),
    # accepted, as by pip
    "many zeros": Kind(with_file(File(path="bad/zeros", data=bytes(1 << 20)))),
    "METADATA of a megabyte": Kind(info("LICENSE", b"word " * 200_000)),
    "many files": Kind(
        with_spec(files=tuple(File(path=f"bad/f{n}", data=b"", stored=True) for n in range(300)))
    ),
    "many entry points": points("\n".join(f"tool{n} = bad:main" for n in range(100)), ""),
    "stored blocks": Kind(
        lambda valid: write(
            [
                replace(raw, stream=b"\0\0\0\xff\xff" + raw.stream) if raw.name == LIB.encode() else raw
                for raw in read(valid)
            ]
        )
    ),
}
