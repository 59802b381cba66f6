"""JupyterLab by a real browser (Debian's Chromium): from the token to a cell's output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.workplace import Container, Workplace

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server"]
_PATIENCE = 60_000  # milliseconds


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    with workplace.started("--publish", "127.0.0.1::8888") as found:
        found.says("is running at")
        yield found


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page of a browser that knows nothing yet."""
    program = shutil.which("chromium")
    if not program:
        give_up = pytest.fail if os.environ.get("TORCHKILN_NEEDS_ENGINE") else pytest.skip
        give_up("chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        opened = browser.new_page()
        opened.set_default_timeout(_PATIENCE)
        yield opened
        browser.close()


def test_a_notebook_from_the_printed_address(container: Container, page: Page) -> None:
    """The address of the log, with the port that was published; a new notebook; a cell and what it says."""
    address = container.says(r"(http://127\.0\.0\.1:)8888(/lab\?token=\w+)")
    page.goto(f"{address[1]}{container.port(8888)}{address[2]}")
    page.get_by_title("Python 3 (ipykernel)").first.click()
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=_PATIENCE)
    cell = page.locator(".jp-Notebook .jp-InputArea-editor .cm-content").first
    cell.click()
    page.keyboard.insert_text("import numpy, sys; print(sys.prefix, numpy.arange(5).sum())")
    page.keyboard.press("Shift+Enter")

    output = page.locator(".jp-OutputArea-output")
    expect(output.first).to_have_text("/opt/venv 10", timeout=_PATIENCE)


@pytest.mark.parametrize("token", ["", "?token=" + "0" * 48])
def test_a_wrong_token_sees_the_login_alone(container: Container, page: Page, token: str) -> None:
    """Neither by the address nor typed in."""
    page.goto(f"http://127.0.0.1:{container.port(8888)}/lab{token}")
    field = page.get_by_label("Password or token")
    field.fill("0" * 48)
    page.get_by_role("button", name="Log in", exact=True).click()

    expect(page.get_by_text("Invalid credentials")).to_be_visible(timeout=_PATIENCE)
    assert page.locator(".jp-Launcher").count() == 0
