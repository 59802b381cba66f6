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
from torchkiln.index.listing import MOST_FILES, Page, listing
from torchkiln.index.read_page import found_on, located, release_files, unfit

_NAMES = st.sampled_from([WHEEL, "numpy-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "numpy-1.0.tar.gz", "x"])
_TEXTS = st.sampled_from(["", ">=3.9", "&gt;=3.9", "broken &amp; bad", "a'b", "data loss", "<4,>=3"])
_HASHES = st.sampled_from([f"#sha256={SHA}", f"#sha256={SHA.upper()}", "", "#md5=0", "#sha256=0", "#egg=x"])


@st.composite
def _links(draw: st.DrawFn) -> str:
    attributes = [f'href="../../files/{draw(_NAMES)}{draw(_HASHES)}"']
    for key in (
        "data-requires-python",
        "data-yanked",
        "data-core-metadata",
        "data-dist-info-metadata",
        "rel",
    ):
        if draw(st.booleans()):
            value = draw(_TEXTS).replace("<", "&lt;")
            quote = draw(st.sampled_from("\"'")) if "'" not in value else '"'
            attributes.append(f"{key}={quote}{value}{quote}" if draw(st.booleans()) else key)
    space = draw(st.sampled_from([" ", "\n", "\t  "]))
    tag = draw(st.sampled_from(["a", "A"]))
    return f"<{tag}{space}{space.join(draw(st.permutations(attributes)))}>{draw(_NAMES)}</{tag}>"


@given(
    links=st.lists(_links(), max_size=6), noise=st.sampled_from(["", "<br/>", "<!-- <a href='x'>x</a> -->"])
)
def test_html_is_read_like_by_another_library(links: list[str], noise: str) -> None:
    """pypi_simple, which parses the whole page into a tree, must find the same files in the same order."""
    page = html(*(link + noise for link in links))
    expected = [
        (package.filename, package.url.partition("#")[0], package.requires_python or "", package.is_yanked)
        for package in ProjectPage.from_html("numpy", page.body, HERE).packages
    ]
    ours = [
        (file.filename, file.url, file.requires_python, file.yanked is not None) for file in listing(page)
    ]
    assert ours == expected


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


@given(
    key=st.sampled_from(["filename", "url", "hashes", "size", "requires-python", "yanked", "core-metadata"]),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers(), max_size=2),
)
def test_a_wrong_type_anywhere_is_read_or_refused(key: str, value: Any) -> None:
    """The only exception is BuildFailed; values that are accepted have the right types."""
    body = json.dumps({"meta": {"api-version": "1.1"}, "name": "numpy", "files": [entry(**{key: value})]})
    try:
        [file] = listing(Page(url=HERE, json=True, body=body.encode("utf-8", "surrogatepass")))
    except BuildFailed:
        return
    assert isinstance(file.filename, str)
    assert file.size is None or (isinstance(file.size, int) and file.size >= 0)
    assert file.yanked is None or isinstance(file.yanked, str)
    for name in ("numpy", "other"):
        assert isinstance(unfit(file.filename, name), str)


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
