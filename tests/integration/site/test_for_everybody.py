"""The pages of `ls --site` in a browser: language, keyboard, colours, phone, axe, hostile records."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import site_scene
from tests.chinese import COLLECT
from tests.node_tools import axe
from tests.site_browser import KINDS, PAGES, english_shown, is_dark, shown, tags_listed, visit
from tests.unit.test_site import PROVED, hostile_site
from torchkiln.site.folder import write_folder

pytestmark = pytest.mark.proof
_COLOURS = '{runOnly: {type: "rule", values: ["color-contrast", "link-in-text-block"]}}'


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_for_everybody(page: Page, folder: Path, path: str) -> None:
    """Open all details: the page has one language, and axe finds no fault in the light and the dark theme.

    On a phone, the page does not scroll sideways. axe checks WCAG AA and best practices. It checks English
    pages only, because Chinese pages have the same structure.
    """
    chinese = path.startswith("zh/")
    visit(page, folder, path)
    expect(page.locator("h1")).to_be_visible()
    page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true; })")
    assert page.locator("html").get_attribute("lang") == ("zh-Hans" if chinese else "en")
    if chinese:
        assert len(page.evaluate(COLLECT)) > 30
        assert english_shown(page) == []
    else:
        page.evaluate(axe())
        for theme, rules in (("light", ""), ("dark", _COLOURS)):
            page.locator("#theme").select_option(theme)
            assert is_dark(page) == (theme == "dark")
            found = page.evaluate(f"axe.run({rules}).then((result) => result.violations)")
            assert [(fault["id"], fault["nodes"][0]["html"][:300]) for fault in found] == [], theme
    page.set_viewport_size({"width": 320, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.locator(".language").click()
    assert page.locator("html").get_attribute("lang") == ("en" if chinese else "zh-Hans")
    assert page.locator("h1").count() == 1


def test_all_can_be_done_by_the_keyboard(page: Page, folder: Path) -> None:
    visit(page, folder, "index.html")
    assert page.evaluate("location.hash") == ""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    page.keyboard.type("h200 ownuse")
    assert len(shown(page)) == 1
    page.keyboard.press("Escape")
    assert shown(page) == tags_listed()
    page.keyboard.type("a/b")  # in the search field, a slash is text
    assert page.locator("#search").input_value() == "a/b"
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(tags_listed()[0])
    visit(page, folder, "index.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


# --- light and dark --------------------------------------------------------------------------------


def test_the_colours_follow_the_system(page: Page, folder: Path) -> None:
    visit(page, folder, "index.html")
    assert page.locator("#theme").input_value() == ""
    assert not is_dark(page)
    page.emulate_media(color_scheme="dark")
    assert is_dark(page)


def test_the_reader_chooses_the_colours_for_all_pages(page: Page, folder: Path) -> None:
    """The keyboard is enough. All pages in both languages keep the choice, until "System" is selected."""
    visit(page, folder, "index.html")
    page.locator(".language").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.type("Dark")
    assert is_dark(page)
    visit(page, folder, f"zh/tags/{PROVED}.html")
    expect(page.get_by_label("主题")).to_have_value("dark")
    assert is_dark(page)
    page.emulate_media(color_scheme="dark")
    page.get_by_label("主题").select_option("浅色")
    assert not is_dark(page)
    visit(page, folder, "pick.html")
    expect(page.get_by_label("Theme")).to_have_value("light")
    assert not is_dark(page)
    page.get_by_label("Theme").select_option("System")
    assert is_dark(page)
    assert page.evaluate("localStorage.length") == 0


def test_the_first_picture_has_the_chosen_colours(page: Page, folder: Path) -> None:
    """The script sets the theme before the body exists, and ignores a stored value that is not an option.

    The test repeats each visit, because another process of the browser may render the next page. This process
    may see the new value in localStorage a moment later.
    """
    assert page.context.browser
    other = page.context.browser.new_page()
    other.add_init_script(
        "new MutationObserver(() => { if (document.body && !('first' in window))"
        " window.first = document.documentElement.dataset.theme ?? ''; })"
        ".observe(document, {childList: true, subtree: true});"
    )
    for stored, first in (("dark", "dark"), ("<b>", "")):
        visit(other, folder, "index.html")
        other.evaluate("(value) => localStorage.setItem('torchkiln-theme', value)", stored)
        for _ in range(20):
            visit(other, folder, "compare.html")
            if other.evaluate("window.first") == first:
                break
        assert (other.evaluate("window.first"), other.locator("#theme").input_value()) == (first, first)
    other.close()


def test_the_colours_can_be_chosen_where_storage_is_forbidden(page: Page, folder: Path) -> None:
    assert page.context.browser
    other = page.context.browser.new_page()
    faults: list[str] = []
    other.on("pageerror", lambda error: faults.append(str(error)))
    other.add_init_script(
        "Object.defineProperty(window, 'localStorage',"
        " {get() { throw new DOMException('', 'SecurityError'); }})"
    )
    visit(other, folder, "index.html")
    other.get_by_label("Theme").select_option("Dark")
    assert (is_dark(other), faults) == (True, [])
    other.close()


# --- hostile records, no script --------------------------------------------------------------------


def test_hostile_records_run_nothing(page: Page, tmp_path: Path) -> None:
    write_folder(tmp_path / "site", site_scene.rendered(hostile_site()))
    for path in KINDS:
        visit(page, tmp_path / "site", path)
        assert page.evaluate("window.owned") is None
        assert page.locator("img").count() == 0
    page.locator("h1").click()


def test_without_javascript_the_pages_are_read_and_the_commands_are_named(page: Page, folder: Path) -> None:
    assert page.context.browser
    plain = page.context.browser.new_context(java_script_enabled=False).new_page()
    plain.goto(f"file://{folder}/index.html")
    assert plain.locator("tr[data-tag]").count() == len(tags_listed())
    expect(plain.locator("#search")).to_be_hidden()
    expect(plain.locator("#theme")).to_be_hidden()
    plain.goto(f"file://{folder}/pick.html")
    expect(plain.get_by_text("torchkiln pick --driver 535 --gpu H100")).to_be_visible()
    plain.close()
