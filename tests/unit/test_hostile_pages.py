"""Untrusted pages of an index: their files are found or refused, with limited time and memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.document_strategies import json_bytes
from tests.servers.answering import Answer, Answering
from torchkiln.errors import BuildFailed
from torchkiln.index.listing import Page, listing
from torchkiln.index.pages import MOST, Pages
from torchkiln.index.read_page import found_on, wheels_on
from torchkiln.index.session import IndexSession
from torchkiln.index.settings import IndexSettings, index_settings
from torchkiln.model.cell import Source
from torchkiln.store.store import Store
from torchkiln.util.http.redirects import UnsafeRedirect

SHA = "ab" * 32
WHEEL = "numpy-2.4.6-py3-none-any.whl"
HERE = "https://index.example/simple/numpy/"
GOOD = f'<a href="../../files/{WHEEL}#sha256={SHA}">{WHEEL}</a>'


def html(*links: str, head: str = "") -> Page:
    body = f"<!DOCTYPE html><html><head>{head}</head><body>\n" + "\n".join(links) + "</body></html>"
    return Page(url=HERE, json=False, body=body.encode())


def js(*files: Any, **more: Any) -> Page:
    """A JSON page of the project numpy."""
    page = {"meta": {"api-version": "1.0"}, "name": "numpy", "files": list(files), **more}
    return Page(url=HERE, json=True, body=json_bytes(page))


def link(href: str, text: str = WHEEL, fragment: str = f"#sha256={SHA}") -> Page:
    return html(f'<a href="{href}{fragment}">{text}</a>')


def entry(**changes: Any) -> dict[str, Any]:
    """The JSON entry of one file."""
    return {"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"sha256": SHA}, **changes}


TAKEN = {
    "valid": html(GOOD),
    "behind other links": html(*(GOOD.replace(SHA, f"{n:064x}") for n in range(300)), GOOD),
    "hash in capitals": link(f"../../files/{WHEEL}", fragment=f"#sha256={SHA.upper()}"),
    "hash twice": html(GOOD, GOOD),
    "broken around it": html("<a href='x'", "<p></div><a", GOOD, "</table><a href="),
    "tag in capitals": html(GOOD.replace("<a", "<A").replace("</a", "</A")),
    "garbage of others": html(
        GOOD.replace("<a", '<a data-requires-python="\x01&gt;=" data-yanked data-gpg-sig="x"')
    ),
    "other host": link(f"//files.example/{WHEEL}"),
    "JSON": js(entry()),
    "JSON with a wrong size": js(entry(size=-5)),
    "JSON with a huge size": js(entry(size=10**30)),
    "JSON with hash in capitals": js(entry(hashes={"sha256": SHA.upper()})),
    "an invalid entry with the same hash first": html(GOOD.replace("../../files", "file:///etc"), GOOD),
}


@pytest.mark.parametrize("page", TAKEN.values(), ids=TAKEN)
def test_a_file_is_found_by_its_hash(page: Page) -> None:
    """The text around its link does not matter, and an invalid size is ignored."""
    found = {(file.filename, file.sha256, file.size) for file in found_on(page, "numpy", {SHA})}

    assert found == {(WHEEL, SHA, None)}


def test_other_wheels_are_listed_if_valid_and_not_yanked() -> None:
    """This is tested for HTML and JSON pages. Invalid links are omitted."""
    yanked = GOOD.replace("<a", '<a data-yanked="broken"')
    assert [item.filename for item in wheels_on(html(GOOD), "numpy")] == [WHEEL]
    assert [(item.sha256, item.size) for item in wheels_on(js(entry(size=7)), "numpy")] == [(SHA, 7)]
    for page in (
        html(yanked),
        js(entry(yanked=True)),
        js(entry(hashes={})),
        js(entry(filename="numpy-2.4.6.tar.gz")),
        link("file:///etc/passwd"),
        link("../../f", "../../x.whl"),
        link("../../f", "evil-1.0-py3-none-any.whl"),
    ):
        assert wheels_on(page, "numpy") == ()


REFUSED = {
    "file": (link(f"file:///etc/{WHEEL}"), "file: is neither http nor https"),
    "javascript": (link("javascript:alert(1)"), "javascript: is neither"),
    "data": (link("data:application/zip,x"), "data: is neither"),
    "ftp": (link(f"ftp://files.example/{WHEEL}"), "ftp: is neither"),
    "downgrade": (link(f"http://files.example/{WHEEL}"), "it leads from https to http"),
    "base element": (
        html(GOOD.replace("../../", ""), head='<base href="http://x.example/">'),
        "leads from https to http",
    ),
    "credentials": (link(f"https://user:secret@files.example/{WHEEL}"), "it contains credentials"),
    "no address": (link(f"https://[::1/{WHEEL}"), "invalid URL"),
    "a path for a name": (link("../../f", "../../x.whl"), "invalid file name: '../../x.whl'"),
    "an escape sequence for a name": (link("../../f", "\x1b]0;x\x07.whl"), "invalid file name"),
    "another project": (link("../../f", "evil-1.0-py3-none-any.whl"), "is not a file of numpy"),
    "not a wheel's name": (link("../../f", "numpy.whl"), "invalid wheel filename: numpy.whl"),
    "invalid JSON": (Page(url=HERE, json=True, body=b"<html>"), "not a project page"),
    "JSON too deep": (Page(url=HERE, json=True, body=b"[" * 100_000), "not a project page"),
    "JSON of another kind": (Page(url=HERE, json=True, body=b"[1]"), "not a project page"),
    "JSON with a wrong type": (js(entry(hashes=["sha256"])), "not a project page"),
    "JSON of another version": (js(entry(), meta={"api-version": "9.0"}), "not a project page"),
    "JSON with a file link": (js(entry(url="file:///etc/passwd")), "file: is neither"),
}


@pytest.mark.parametrize(("page", "why"), REFUSED.values(), ids=REFUSED)
def test_a_link_to_another_place_is_refused(page: Page, why: str) -> None:
    """The error message names the page, and contains no credentials."""
    with pytest.raises(BuildFailed, match=why) as caught:
        found_on(page, "numpy", {SHA})

    assert "index.example" in caught.value.message
    assert "secret" not in str(caught.value) + caught.value.hint
    assert caught.value.hint


def test_other_files_are_not_checked() -> None:
    """Invalid entries of files that are not needed cause no error."""
    assert found_on(link("javascript:x", fragment="#sha256=" + "0" * 64), "numpy", {SHA}) == ()
    assert found_on(link(f"../{WHEEL}", fragment="#md5=0"), "numpy", {SHA}) == ()


def test_a_page_of_only_tags_is_not_parsed() -> None:
    """The HTML parser would need a kilobyte of memory for every two bytes of this page."""
    with pytest.raises(BuildFailed, match="not a project page"):
        listing(Page(url=HERE, json=False, body=b"<b" * 1_000_000))
    assert found_on(Page(url=HERE, json=False, body=b"<b>" * 1_000_000 + SHA.encode()), "numpy", {SHA}) == ()


def test_a_login_is_sent_to_its_own_origin_only(tmp_path: Path) -> None:
    """A page of an index without TLS can link to the server of another index, without TLS."""
    seen: list[str | None] = []

    def answer(_: str, headers: Mapping[str, str]) -> Answer:
        seen.append(headers.get("Authorization"))
        return 200, {}, b""

    with Answering(answer) as server:
        for url in (server.url(), server.url().replace("http:", "https:"), "http://127.0.0.1"):
            login = index_settings({}, pip_config="", default_url=url.replace("://", "://me:secret@"))
            with IndexSession(login) as session:
                session.get(server.url("x"))
    assert [bool(login) for login in seen] == [True, False, False]


# --- over the wire --------------------------------------------------------------------------------


#: The responses of a hostile server, by path.
TABLE: dict[str, Answer] = {
    "/bomb/numpy/": (200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(MOST * 8), 1)),
    "/long/numpy/": (200, {}, b"x" * (MOST + 1)),
    "/file/numpy/": (302, {"Location": "file:///etc/passwd"}, b""),
    "/odd/numpy/": (302, {"Location": "gopher://x.example/"}, b""),
    "/broken/numpy/": (200, {"Content-Encoding": "gzip"}, b"no gzip"),
    "/lie/numpy/": (200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, html(GOOD).body),
}


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    def answer(path: str, _: Mapping[str, str]) -> Answer:
        status, headers, body = TABLE[path]
        return status, {"Content-Type": "text/html", **headers}, body

    with Answering(answer) as server:
        yield server.url()


def settings_of(url: str) -> IndexSettings:
    """Index settings with *url* as the only index."""
    return index_settings({}, pip_config="", default_url=url)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("bomb", "longer than 16 MiB"),
        ("long", "longer than 16 MiB"),
        ("file", "file: is neither http nor https"),
        ("odd", "gopher: is neither"),
        ("broken", "does not match its Content-Encoding"),
        ("lie", "not a project page"),
    ],
)
def test_responses_of_a_server_are_limited(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str, why: str
) -> None:
    """The limits also apply to decompressed data and to redirects."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    pages = Pages(settings_of(f"{origin}{index}"), Store(tmp_path))
    with pytest.raises(BuildFailed, match=why):
        pages.files("numpy", Source.DEFAULT, {SHA})


@pytest.mark.parametrize(
    "target", ["http://index.example/x", "//user:secret@index.example/", "FILE:/etc/passwd"]
)
def test_a_redirect_out_of_https_is_not_followed(target: str) -> None:
    answer = requests.Response()
    answer.status_code, answer.url, answer.headers["Location"] = 302, HERE, target
    with pytest.raises(UnsafeRedirect) as caught:
        IndexSession(settings_of(HERE)).get_redirect_target(answer)

    assert "secret" not in str(caught.value)


def test_a_redirect_within_https_is_followed() -> None:
    answer = requests.Response()
    answer.status_code, answer.url, answer.headers["Location"] = 301, HERE, "/other/"

    assert IndexSession(settings_of(HERE)).get_redirect_target(answer) == "/other/"
