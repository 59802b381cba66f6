"""JupyterLab by a real browser (Debian's Chromium): from the token to a cell's output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browsing import PATIENCE, browsing, output
from tests.workplace import Container, Workplace

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    with workplace.started("--publish", "127.0.0.1::8888") as found:
        found.serves()
        yield found


def test_a_notebook_from_the_printed_address(container: Container) -> None:
    """The address of the log; a new notebook; a cell and what it says. Nobody else is asked anything."""
    with browsing() as (page, asked):
        said = output(container, page, "import numpy, sys; print(sys.prefix, numpy.arange(5).sum())")
        page.wait_for_timeout(2000)  # an invitation to news comes late
        invitations = page.get_by_text("Jupyter news").count()

    assert said == "/opt/venv 10"
    assert (asked, invitations) == ({"127.0.0.1"}, 0)


@pytest.mark.parametrize("token", ["", "?token=" + "0" * 48])
def test_a_wrong_token_sees_the_login_alone(container: Container, token: str) -> None:
    """Neither by the address nor typed in."""
    with browsing() as (page, _):
        page.goto(f"http://127.0.0.1:{container.port(8888)}/lab{token}")
        page.get_by_label("Password or token").fill("0" * 48)
        page.get_by_role("button", name="Log in", exact=True).click()

        expect(page.get_by_text("Invalid credentials")).to_be_visible(timeout=PATIENCE)
        assert page.locator(".jp-Launcher").count() == 0
