"""The scanner sees what a tar reader sees."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.roots import entry, tar_of
from torchkiln.oci.tarscan import Entry, TarScan

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1)
PATHS = st.lists(NAMES, min_size=1, max_size=12).map("/".join)
FILES = st.builds(entry, PATHS, st.binary(max_size=1500))
LINKS = st.builds(
    lambda path, to, kind: entry(path, kind=kind, to=to),
    PATHS,
    PATHS,
    st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE]),
)
FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])


@given(st.lists(FILES | LINKS, max_size=6), FORMATS, st.integers(1, 2000))
def test_names_kinds_and_targets_come_out_whatever_the_pieces(
    entries: list[tuple[tarfile.TarInfo, bytes]], kind: int, piece: int
) -> None:
    data = tar_of(entries, kind)
    scan = TarScan()
    seen = [found for at in range(0, len(data), piece) for found in scan.feed(data[at : at + piece])]

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert seen == [Entry(info.name, info.type.decode(), info.linkname) for info in tar]
    assert scan.ended


def test_a_file_of_more_than_8_gib_is_passed_over_by_its_true_size() -> None:
    """Octal digits end there; pax and GNU each say it their own way."""
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        info, _ = entry("big")
        info.size = 9 << 30
        scan = TarScan()

        assert [found.name for found in scan.feed(info.tobuf(kind))] == ["big"]
        for _ in range(9):
            assert scan.feed(bytes(1 << 20)) == []
        assert not scan.ended


def test_what_is_no_tar_is_an_error() -> None:
    with pytest.raises(ValueError):
        TarScan().feed(b"MZ" + b"\x01z" * 600)
