"""The Chinese pages of `ls --site` in a browser: all texts are Chinese, also after each action of a user."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.chinese import COLLECT, english_in
from tests.site_browser import COMPARE, FACTS, FILL, english_shown, shown, tags_listed, visit

pytestmark = pytest.mark.proof


def test_the_search_shows_no_english(page: Page, folder: Path) -> None:
    visit(page, folder, "zh/index.html")
    for query, count in (
        ("已构建", None),
        ("次版本兼容 devel", None),
        ("numpy 1.26", None),
        ("没有", 0),
    ):
        page.locator("#search").fill(query)
        assert (len(shown(page)) > 0) == (count is None), query
        assert english_shown(page) == []
    assert page.locator("#found").text_content() == "没有匹配的镜像。"


def test_every_answer_of_the_picker_is_in_chinese(page: Page, folder: Path) -> None:
    visit(page, folder, "zh/pick.html")
    seen: set[str] = set()
    gpus = ["", *(kind.names[0] for kind in FACTS.gpus[::3])]
    for driver, gpu in itertools.product(("450.80.02", "470", "535", "580.65.06", "600"), gpus):
        page.evaluate(FILL, [driver, gpu, ""])
        seen.update(page.evaluate(COLLECT))
    page.locator("#driver").fill("53x")
    seen.update(page.evaluate(COLLECT))
    assert [text for text in seen if english_in(text)] == []
    assert len(seen) > 150


def test_every_comparison_is_in_chinese(page: Page, folder: Path) -> None:
    visit(page, folder, "zh/compare.html")
    seen: set[str] = set()
    for pair in list(itertools.combinations(tags_listed(), 2))[::60]:
        page.evaluate(COMPARE, [pair])
        seen.update(page.evaluate(COLLECT))
    assert [text for text in seen if english_in(text)] == []
