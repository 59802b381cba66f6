"""The oracle for layers finds the faults of a tar or its gzip, and never raises an exception."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.tars import END, head, octal
from tests.oci_samples import BASE, OWN, Member, build, digest, files, members_of, tar_of, words
from torchkiln.oci.validate import layer as inspect_module
from torchkiln.oci.validate import validate as module
from torchkiln.oci.validate.layer import GZIP_TYPE, TarInspector, inspect_layer
from torchkiln.oci.validate.validate import validate

F = Member(name="opt/f", data=b"1")
# The reader's own faults are in tests/hostile/tars.py; these are the first of them, and what `verify` adds.
TAR_FAULTS: dict[str, tuple[bytes, str]] = {
    "absolute": (tar_of([Member(name="/etc/passwd")]), "'/etc/passwd': the name is absolute"),
    "twice": (tar_of([F, F]), "opt/f: duplicate entry"),
    "parent missing": (
        tar_of([Member(name="no/where/f")]),
        "parent missing: no/where is not in this layer and missing",
    ),
    "parent a file": (
        tar_of([Member(name="etc/motd/f")]),
        "parent missing: etc/motd is not in this layer and not a directory in those below",
    ),
    "mode": (head(b"m", mode=octal(0o100644, 8)) + END, "m: mode 100644 has more than permission bits"),
    "world": (tar_of([Member(name="w", mode=0o666)]), "w: mode 666 is world-writable"),
    "owner": (tar_of([Member(name="o", uid=70_000)]), "o: owner 70000:0 is above"),
}


@pytest.mark.parametrize("kind", TAR_FAULTS)
def test_a_fault_in_a_tar_is_found(tmp_path: Path, kind: str) -> None:
    """Every digest is correct, so the fault is found only by reading the tar."""
    tar, pattern = TAR_FAULTS[kind]

    found = words(build(tmp_path, tar))

    assert len(found) == 1
    assert found[0].startswith("a layers[1]: ")
    assert re.search(pattern, found[0])


GZIP_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "garbage": (lambda tar: members_of(tar, 3) + b"garbage", r"trailing data at byte \d+: not a gzip member"),
    "zeros": (lambda tar: members_of(tar) + bytes(9), r"trailing data at byte \d+: not a gzip member"),
    "one byte": (lambda tar: members_of(tar) + b"\x1f", "trailing data"),
    "no gzip": (lambda tar: tar, r"the blob does not begin with a gzip member"),
    "bad crc": (lambda tar: members_of(tar)[:-8] + bytes(8), "the gzip member at byte 0 is damaged"),
    "cut": (lambda tar: members_of(tar)[:-8], "the gzip member at byte 0 is truncated"),
    "truncated in the gzip header": (
        lambda tar: members_of(tar) + b"\x1f\x8b\x08",
        r"the gzip member at byte \d+ is truncated",
    ),
}


@pytest.mark.parametrize("kind", GZIP_FAULTS)
def test_a_fault_in_the_gzip_is_found(tmp_path: Path, kind: str) -> None:
    """Faults are before, within and after the gzip members."""
    pack, pattern = GZIP_FAULTS[kind]

    found = "\n".join(words(build(tmp_path, tar_of(OWN), pack=pack)))

    assert re.search(pattern, found)


def test_the_list_of_faults_is_limited(tmp_path: Path) -> None:
    """A layer with ten thousand invalid names gives twenty lines of output."""
    found = words(build(tmp_path, tar_of([Member(name=f"/{number}") for number in range(10_000)])))

    assert len(found) == 21
    assert found[-1] == "a layers[1]: and 9980 more faults"


@given(data=st.binary(max_size=3000), at=st.integers(0, 4000), flip=st.integers(1, 255))
def test_no_bytes_make_the_inspector_fail(data: bytes, at: int, flip: int) -> None:
    """It raises no exception for random bytes, or for a tar with one changed byte."""
    tar = bytearray(tar_of(BASE))
    tar[at % len(tar)] ^= flip
    for content in (data, bytes(tar)):
        inspector = TarInspector()
        inspector.inspect([content])
        inspector.faults()


def test_facts_of_a_layer_are_those_of_python(tmp_path: Path) -> None:
    """Python computes the same digest, diff_id and sizes, for any members and a compression ratio of 1000."""
    tar = tar_of(files(zeros=bytes(9 << 20), noise=random.Random(5).randbytes(700_000)))
    blob = members_of(tar, 7)
    (tmp_path / "blob").write_bytes(blob)

    facts = inspect_layer(tmp_path / "blob", GZIP_TYPE)

    assert (facts.digest, facts.diff_id, facts.faults) == (digest(blob), digest(tar), ())
    assert (facts.size, facts.unpacked) == (len(blob), len(tar))
    assert facts.paths.others == {"zeros", "noise"}


def test_a_member_may_begin_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its magic number may be split between two reads, and one byte may follow the last member."""
    monkeypatch.setattr(inspect_module, "_READ", 37)
    tar = tar_of(files(noise=random.Random(5).randbytes(3000)))
    blob = members_of(tar, 60)
    (tmp_path / "blob").write_bytes(blob)
    (tmp_path / "more").write_bytes(blob + b"\x1f")

    facts, more = (inspect_layer(tmp_path / name, GZIP_TYPE) for name in ("blob", "more"))

    assert (facts.digest, facts.diff_id, facts.faults) == (digest(blob), digest(tar), ())
    assert more.digest == digest(blob + b"\x1f")
    assert f"at byte {len(blob)}:" in more.faults[0]


def test_parallel_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large layouts are checked in several processes, which give the same faults in the same order."""
    layout = build(tmp_path, tar_of([F, F]), TAR_FAULTS["absolute"][0])
    alone = words(layout)

    monkeypatch.setattr(module, "_WORTH_PROCESSES", 0)

    assert [str(fault) for fault in validate(layout.path, workers=2)] == alone
    assert len(alone) == 2
