"""Fuzz the reader of index pages: it must reject a page with a message, or agree with pypi_simple.

For an invalid page, the readers may differ; torchkiln must reject it with a message or return correct types.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from pypi_simple import ProjectPage

from tests.fuzz.source import Decisions
from torchkiln.errors import BuildFailed
from torchkiln.index.listing import Page, listing
from torchkiln.index.read_page import unfit

HERE = "https://index.example/simple/numpy/"
_SHA = "a" * 64
_FILES = ("numpy-1.0-py3-none-any.whl", "numpy-1.0.tar.gz", "numpy-2.0-py3-none-any.whl", "x", "é.whl", "..")
_ENDS = (f"#sha256={_SHA}", f"#sha256={_SHA.upper()}", "", "#md5=0", "#sha256=0", "#egg=x", "?a=b")
_KEYS = (
    "data-requires-python",
    "data-yanked",
    "data-core-metadata",
    "data-dist-info-metadata",
    "rel",
    "DATA-X",
)
_BETWEEN = ("", "\n", "<br/>", "<!-- <a href='x'>x</a> -->", "<p>text</p>", "&amp;", "<b>bold</b>")
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1 << 70, "", "x", ">=3.9", [], {}, ["x"], {"sha256": _SHA}, {"sha256": 1}),
    *("2024-01-01T00:00:00Z", "../x", "file:///etc/passwd", "\u202e"),
)


def program(decisions: Decisions) -> tuple[bytes, bool, bool]:
    """A page, whether it is JSON, and whether other readers must agree."""
    form = decisions.number(3)
    if form == 0:
        return decisions.rest(), bool(decisions.number(1)), False
    if form == 1:
        return json.dumps(_document(decisions)).encode(), True, False
    parts = []
    while decisions and len(parts) < 12:
        parts.append(_link(decisions) + decisions.choice(_BETWEEN))
    body = f"<!DOCTYPE html><html><body>\n{''.join(parts)}</body></html>".encode()
    if form == 3:
        at = decisions.number(len(body) - 1)
        return body[:at] + decisions.take(2) + body[at + decisions.number(2) :], False, False
    return body, False, True


def _link(decisions: Decisions) -> str:
    attributes = [f'href="../../files/{decisions.choice(_FILES)}{decisions.choice(_ENDS)}"']
    for _ in range(decisions.number(3)):
        text = decisions.take(decisions.number(6)).decode("latin-1")  # readers disagree on control characters
        value = html.escape("".join(letter for letter in text if letter.isprintable()).strip())
        key = decisions.choice([key for key in _KEYS if key not in "".join(attributes)] or ["class"])
        attributes.insert(decisions.number(len(attributes)), f'{key}="{value}"')
    space = decisions.choice((" ", "\n", "\t "))
    return f"<a{space}{space.join(attributes)}>{decisions.choice(_FILES)}</a>"


def _document(decisions: Decisions) -> Any:
    file: dict[str, Any] = {"filename": _FILES[0], "url": f"../{_FILES[0]}", "hashes": {"sha256": _SHA}}
    file |= {"size": 7, "requires-python": ">=3.9", "yanked": False, "core-metadata": {"sha256": _SHA}}
    document: dict[str, Any] = {"meta": {"api-version": "1.1"}, "name": "numpy", "files": [file, dict(file)]}
    for _ in range(1 + decisions.number(2)):
        place: dict[str, Any] = decisions.choice((document, file, file, document["meta"]))
        if not isinstance(place, dict):
            break
        place[decisions.choice((*file, *document, "x"))] = decisions.choice(_VALUES)
        if not isinstance(document.get("meta"), dict):
            break
    return document


def judge(body: bytes, as_json: bool, agreed: bool) -> str:
    """ "accepted" or "refused"; raises if pypi_simple sees other files, or a valid page is refused."""
    try:
        result = listing(Page(url=HERE, json=as_json, body=body))
        ours = [(file.filename, file.url, file.requires_python, file.yanked is not None) for file in result]
    except BuildFailed:
        if agreed:
            raise
        return "refused"
    for item in result:
        assert item.size is None or (type(item.size) is int and item.size >= 0)
        assert all(
            isinstance(text, str)
            for text in (item.filename, item.requires_python, unfit(item.filename, "numpy"))
        )
    if agreed:
        theirs = [
            (
                package.filename,
                package.url.partition("#")[0],
                package.requires_python or "",
                package.is_yanked,
            )
            for package in ProjectPage.from_html("numpy", body.decode(), HERE).packages
        ]
        assert ours == theirs, (ours, theirs)
    return "accepted"


def check(data: bytes, _scratch: Path) -> str:
    """The result of the page that *data* describes; raises as `judge`."""
    return judge(*program(Decisions(data)))


def corpus(_scratch: Path) -> list[bytes]:
    """Pages of each form, some of which are valid."""
    return [bytes([form, *range(n, n + 60)]) for form in range(4) for n in range(0, 120, 20)]
