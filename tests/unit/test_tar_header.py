"""Tar headers against the standard library's, byte by byte."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchkiln.oci.tar import header, parents

PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
PATHS = st.one_of(
    st.lists(PART, min_size=1, max_size=5).map("/".join),
    st.text("ab/c.", min_size=1, max_size=130).filter(lambda path: path.strip("/") == path),
)


@given(
    path=PATHS,
    mode=st.sampled_from([0o644, 0o755, 0o4755, 0o1777]),
    size=st.one_of(st.integers(0, 2**20), st.integers(8**11 - 2, 8**11 + 2)),
    mtime=st.integers(0, 8**11 - 1),
    directory=st.booleans(),
)
@example(path="a" * 99, mode=0o644, size=1, mtime=1, directory=True)
@example(path="a" * 100, mode=0o644, size=1, mtime=1, directory=False)
@example(path="ü", mode=0o644, size=8**11, mtime=1, directory=False)
def test_as_the_standard_library_writes_it(
    path: str, mode: int, size: int, mtime: int, directory: bool
) -> None:
    """Short, long, not ASCII, too large for the plain field: whichever way was taken."""
    size = 0 if directory else size
    info = tarfile.TarInfo(path + "/" if directory else path)
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    info.mode, info.size, info.mtime = mode, size, mtime

    ours = header(path, mode=mode, size=size, mtime=mtime, directory=directory)
    assert ours == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


@pytest.mark.parametrize(
    ("path", "above"), [("a", []), ("a/b", ["a"]), ("a/b/c.py", ["a", "a/b"]), ("ä/ö/ü", ["ä", "ä/ö"])]
)
def test_parents(path: str, above: list[str]) -> None:
    """Outermost first."""
    assert parents(path) == above
