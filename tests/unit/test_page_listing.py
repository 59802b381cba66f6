"""Index pages are read as pypi_simple reads them; files that a resolver must not use are omitted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypi_simple import ProjectPage

from tests.unit.test_hostile_pages import GOOD, HERE, SHA, WHEEL, entry, html, js
from torchkiln.errors import BuildFailed
from torchkiln.index.listing import MOST_FILES, listing
from torchkiln.index.read_page import found_on, located, release_files, unfit

_NAMES = st.sampled_from([WHEEL, "numpy-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "numpy-1.0.tar.gz", "x"])
_TEXTS = st.sampled_from(["", ">=3.9", "&gt;=3.9", "broken &amp; bad", "a'b", "data loss", "<4,>=3"])


@given(
    files=st.lists(
        st.fixed_dictionaries(
            {"filename": _NAMES, "url": st.just("../x"), "hashes": st.just({"sha256": SHA})},
            optional={
                "size": st.integers(0, 1 << 50),
                "requires-python": _TEXTS,
                "yanked": st.booleans() | _TEXTS,
                "core-metadata": st.booleans() | st.just({"sha256": SHA}) | st.just({}),
                "upload-time": st.sampled_from(["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123456Z"]),
            },
        ),
        max_size=5,
    )
)
def test_json_is_read_like_by_another_library(files: list[dict[str, Any]]) -> None:
    page = js(*files)
    expected = ProjectPage.from_json_data(json.loads(page.body), HERE).packages
    result = listing(page)
    assert [(file.filename, file.url) for file in result] == [(link.filename, link.url) for link in expected]
    assert [file.sha256 for file in result] == [link.digests.get("sha256") for link in expected]
    assert [file.requires_python for file in result] == [link.requires_python or "" for link in expected]


BAD_NAMES = [
    "../numpy-1.0-py3-none-any.whl",
    "/etc/numpy-1.0-py3-none-any.whl",
    "numpy-1.0-py3-none-any.whl/..",
    "a/../numpy-1.0-py3-none-any.whl",
    "..%2fnumpy-1.0-py3-none-any.whl",
    "numpy-1.0\0-py3-none-any.whl",
    "numpy-1.0\n-py3-none-any.whl",
    "numpy-1.0\x1b[2J-py3-none-any.whl",
    "numpy\u202e-1.0-py3-none-any.whl",
    "numpy -1.0-py3-none-any.whl",
    "num\\py-1.0-py3-none-any.whl",
    "numpy-1.0-py3-none-any.whl" + "x" * 300 + ".whl",
    "numpy-one-py3-none-any.whl",
    "numpy-1.0.whl",
    "numpyx-1.0-py3-none-any.whl",
    ".whl",
    "",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_file_name_of_another_project(name: str) -> None:
    """If a hash requires such a file, it is an error. For the resolver, the file is omitted with a reason."""
    assert unfit(name, "numpy")
    with pytest.raises(BuildFailed):
        found_on(js(entry(filename=name)), "numpy", {SHA})
    result = listing(js(entry(filename=name or "x")))
    assert release_files(result, "numpy")[0] == ()


@pytest.mark.parametrize(
    "url",
    [
        "data:application/zip,PK",
        "file:///etc/passwd",
        "//me:secret@files.example/x",
        "https://me@files.example/x",
        "ftp://files.example/x",
        "ws://files.example/x",
        "https://files.example/a\0b",
        "https://files.example/a%00b",
        "https://files.example/a%0d%0aHost:x",
        "https://files.example/a b",
        "https://files.example\\@evil.example/x",
        "https://[::1/x",
        "https://files.example:port/x",
    ],
)
def test_a_url_that_is_not_followed(url: str) -> None:
    """The URL is refused for a file that a hash requires, and for a file that the resolver chooses."""
    with pytest.raises(BuildFailed, match=r"unsafe link|not a project page"):
        found_on(js(entry(url=url)), "numpy", {SHA})
    [file] = listing(js(entry(url=url)))
    with pytest.raises(BuildFailed, match="unsafe link"):
        located(file)


def test_the_work_for_a_page_of_many_links_is_limited() -> None:
    with pytest.raises(BuildFailed, match="more than 50000 links"):
        listing(html(*[GOOD] * (MOST_FILES + 1)))
