"""The output of `git ls-tree` is parsed strictly: paths and links; and which URLs are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.projects.sources.by_commit import url_fault
from torchkiln.projects.sources.git import entries, leads_out

ID = "a" * 40


def row(path: bytes, mode: str = "100644", kind: str = "blob", size: str = "3") -> bytes:
    return f"{mode} {kind} {ID} {size:>7}\t".encode() + path + b"\0"


def test_entries() -> None:
    listing = row(b"a b\tc") + row(b"d/\xff", "120000") + row(b"ext/lib", "160000", "commit", "-")
    found = entries(listing, 3)
    assert [(one.path, one.size, one.is_link, one.is_submodule) for one in found] == [
        ("a b\tc", 3, False, False),
        ("d/\udcff", 3, True, False),
        ("ext/lib", 0, False, True),
    ]
    assert entries(b"", 0) == ()


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        (row(b"../x"), "invalid path"),
        (row(b"a/../x"), "invalid path"),
        (row(b"/etc/passwd"), "invalid path"),
        (row(b"a//b"), "invalid path"),
        (row(b".git/config"), "invalid path"),
        (row(b"a/.GIT/hooks/x"), "invalid path"),
        (row(b"a" * 5000), "invalid path"),
        (row(b"x") + row(b"x"), "x: listed twice"),
        (row(b"x", "120000") + row(b"x/y/z"), "x: both a file and a folder"),
        (b"100644 blob 1\tx\0", "git listed '100644 blob 1"),
        (row(b"a") * 5, "more than 4 files"),
    ],
)
def test_entries_that_are_refused(listing: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        entries(listing, 4)


@given(st.lists(st.binary(max_size=60)))
def test_any_listing_is_read_or_refused(rows: list[bytes]) -> None:
    try:
        found = entries(b"\0".join((*rows, b"")), 100)
    except ValueError:
        return
    assert len(found) == len(rows)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("a/b", "../c", False),
        ("b", "c/../d", False),
        ("b", "..", True),
        ("a/b", "../../c", True),
        ("a/b", "x/../../../c", True),
        ("a/b", "/etc/passwd", True),
        ("a/b", "..c", False),
        ("a/b", "c\0d", True),
    ],
)
def test_links(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://host.invalid/a/b.git", ""),
        ("HTTPS://host.invalid:8443/a", ""),
        ("http://127.0.0.1:8000/a", ""),
        ("http://[::1]:8000/a", ""),
        ("http://host.invalid/a", "must begin with https://"),
        ("http://127.0.0.1.host.invalid/a", "must begin with https://"),
        ("ssh://git@host.invalid/a", "must begin with https://"),
        ("git@host.invalid:a/b", "must begin with https://"),
        ("ext::sh -c true", "must begin with https://"),
        ("file:///a", "must begin with https://"),
        ("-uhttps://host.invalid/a", "must begin with https://"),
        ("--upload-pack=true", "must begin with https://"),
        ("", "must begin with https://"),
        ("https://me:secret@host.invalid/a", "it contains credentials: put them into ~/.netrc"),
        ("https://me@host.invalid/a", "it contains credentials"),
        ("https://host.invalid/a?x=1", "not the URL of a repository"),
        ("https://host.invalid/", "not the URL of a repository"),
        ("https://host.invalid/a@b", "not the URL of a repository"),
        ("https://host.invalid/a b", "invalid URL"),
        ("https://host.invalid/a%0ab", "it contains control characters"),
        ("https://[x/a", "invalid URL"),
        (f"https://host.invalid/{'a' * 1000}", "longer than 1000 characters"),
    ],
)
def test_urls(url: str, why: str) -> None:
    found = url_fault(url)
    assert why in found if why else found == ""
