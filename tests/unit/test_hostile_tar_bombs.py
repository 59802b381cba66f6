"""Small layers that become large: each ends with one sentence, in little memory, before it fills the disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.hostile.tars import END, file, head, octal, pax, record

MEBIBYTES = 400  # at most, in all; an empty interpreter with our modules has 40

# Reads the layer as `run`, `verify` and `diff` do; prints what was said, and its largest size in MiB.
CHILD = """
import json, sys
from pathlib import Path
from torchkiln.errors import KilnError
from torchkiln.oci.validate.layer import GZIP_TYPE, inspect_layer
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, apply_layer
from torchkiln.oci.unpack import LayerBlob, unpack

how, path, diff_id = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
said = ""
try:
    if how == "unpack":
        unpack([LayerBlob(path=path, diff_id=diff_id)], path.with_name("root"))
    elif how == "inspect":
        said = "; ".join(inspect_layer(path, GZIP_TYPE).faults)
    else:
        with open_layer(path) as stream:
            apply_layer({}, stream)
except (KilnError, *DAMAGED) as error:
    said = getattr(error, "message", str(error))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([said, int(peak.split()[1]) >> 10]))
"""


def repeated(part: bytes, count: int, *, before: bytes = b"", after: bytes = END) -> Iterator[bytes]:
    """A gzip file of *before*, *count* times *part*, *after*: a member each, so that it is quickly made."""
    yield gzip.compress(before, 1)
    member = gzip.compress(part, 9)
    for _ in range(count):
        yield member
    yield gzip.compress(after, 1)


def entries() -> Iterator[bytes]:
    """510,000 links with names of their own."""
    for start in range(0, 510_000, 10_000):
        yield gzip.compress(
            b"".join(head(b"%d" % number, b"2", to=b"x") for number in range(start, start + 10_000)), 1
        )
    yield gzip.compress(END)


def names() -> Iterator[bytes]:
    """40,000 names of 2 KiB: 80 MiB."""
    for start in range(0, 40_000, 1000):
        yield gzip.compress(
            b"".join(
                pax(record("path", "/".join(["n" * 200] * 10) + str(number))) + head(b"x")
                for number in range(start, start + 1000)
            ),
            1,
        )
    yield gzip.compress(END)


def attributes() -> Iterator[bytes]:
    """200 files with a MiB of attributes each."""
    value = "v" * 1_000_000
    for number in range(200):
        yield gzip.compress(pax(record("SCHILY.xattr.user.x", value)) + head(b"%d" % number), 1)
    yield gzip.compress(END)


ZEROS = bytes(64 << 20)
HUGE = head(b"big", size=octal(7 << 30, 12))
BOMBS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "entries": (entries, "00000 entries"),
    "names": (names, "have more than 64 MiB"),
    "attributes": (attributes, "have more than 64 MiB"),
    "a file of zeros": (lambda: repeated(ZEROS, 112, before=HUGE), "unpacks to more than"),
    "zeros behind the end": (lambda: repeated(ZEROS, 30, before=file(b"f") + END), "of zeros after the end"),
    "an extended header of a GiB": (
        lambda: repeated(ZEROS, 16, before=head(b"x", b"x", size=1 << 30)),
        "more than 1048576",
    ),
    "a long name of a GiB": (
        lambda: repeated(ZEROS, 16, before=head(b"x", b"L", size=1 << 30, form="gnu")),
        "more than 1048576",
    ),
    "members without content": (lambda: repeated(b"", 100_000, before=file(b"f")), ""),
}


# `unpack` reads by the reader that `inspect` has; 200,000 files would take it minutes on a slow disk.
CASES = [
    (name, how)
    for name in BOMBS
    for how in ("unpack", "inspect", "diff")
    if (name, how) != ("entries", "unpack")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of the bomb of that name, which is only read."""

    @cache
    def make(name: str) -> Path:
        blob = tmp_path_factory.mktemp("bombs") / "blob"
        with blob.open("wb") as out:
            out.writelines(BOMBS[name][0]())
        return blob

    return make


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_bomb_is_refused_in_little_memory(
    tmp_path: Path, made: Callable[[str], Path], name: str, how: str
) -> None:
    words, blob = BOMBS[name][1], tmp_path / "blob"
    blob.hardlink_to(made(name))
    diff_id = "sha256:" + "0" * 64 if words else digest_of(blob)

    done = subprocess.run(
        [sys.executable, "-c", CHILD, how, str(blob), diff_id], capture_output=True, text=True, check=True
    )

    said, peak = json.loads(done.stdout)
    assert words in said
    assert bool(words) == bool(said)
    assert "\n" not in said
    assert peak < MEBIBYTES
    assert not any(path.name.startswith(".root") for path in tmp_path.iterdir())


def digest_of(blob: Path) -> str:
    """Of the tar in it."""
    digest, data = hashlib.sha256(), blob.read_bytes()
    while data:
        inflater = zlib.decompressobj(31)
        digest.update(inflater.decompress(data))
        data = inflater.unused_data
    return f"sha256:{digest.hexdigest()}"
