"""JupyterLab in a real browser, Debian's Chromium: from the printed address to a cell's output."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect, sync_playwright

from tests.needs import give_up
from tests.workplace import Container

PATIENCE = 300_000  # milliseconds
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server"]


@contextmanager
def browsing() -> Iterator[tuple[Page, set[str]]]:
    """An empty page of a browser that knows nothing yet, and the hosts that it will have asked."""
    program = shutil.which("chromium")
    if not program:
        give_up("chromium is not installed: apt-get install chromium")
    asked: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: asked.add(urlsplit(request.url).hostname or "127.0.0.1"))
        yield page, asked
        browser.close()


def address(container: Container) -> str:
    """Of its log, with the port that was published."""
    found = container.says(r"(http://127\.0\.0\.1:)8888(/lab\?token=\w+)")
    return f"{found[1]}{container.port(8888)}{found[2]}"


def output(container: Container, page: Page, code: str) -> str:
    """What *code* says in the first cell of a new notebook."""
    page.goto(address(container))
    page.get_by_title("Python 3 (ipykernel)").first.click()
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=PATIENCE)
    cell = page.locator(".jp-Notebook .jp-InputArea-editor .cm-content").first
    cell.click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")
    found = page.locator(".jp-OutputArea-output").first
    expect(found).to_have_text(re.compile(r"\S"), timeout=PATIENCE)
    return (found.text_content() or "").strip()
