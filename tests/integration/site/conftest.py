"""A browser with the catalogue of this repository, opened from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests import site_scene
from tests.clients import browsing
from torchkiln.site.folder import write_folder


@pytest.fixture(scope="session")
def browser() -> Iterator[tuple[Page, list[str]]]:
    """A page and the list of its errors. At the end, the page must have requested only `file:` URLs."""
    with browsing() as (page, _):
        asked: set[str] = set()
        faults: list[str] = []
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page, faults
        assert asked <= {"file", "data"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("catalogue") / "site"
    write_folder(place, site_scene.files())
    return place


@pytest.fixture
def page(browser: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page in its initial state. At the end, the browser's console must have no errors."""
    found, faults = browser
    found.set_viewport_size({"width": 1280, "height": 900})
    found.emulate_media(color_scheme="light")
    faults.clear()
    yield found
    if found.url.startswith("file:"):  # about:blank has no localStorage
        found.evaluate("localStorage.clear()")
    assert faults == []
