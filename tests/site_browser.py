"""Functions for tests of the catalogue's pages; the fixtures are in tests/integration/site/conftest.py."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.chinese import COLLECT, english_in
from tests.site_scene import listed
from tests.unit.test_site import PROVED
from tools.kept import tables

KINDS = ("index.html", "pick.html#driver=535&gpu=H100", "compare.html", f"tags/{PROVED}.html")
PAGES = (*KINDS, *(f"zh/{page}" for page in KINDS))
FACTS = tables()[1]
NAMES = [name for kind in FACTS.gpus for name in (*kind.names, kind.capability)]

FILL = """([driver, gpu, torch]) => {
  for (const [id, value] of Object.entries({driver, gpu, torch})) document.getElementById(id).value = value;
  document.getElementById("torch").dispatchEvent(new Event("input"));
  const entries = (selector) => [...document.querySelectorAll(selector)].map(
    (entry) => [entry.dataset.tag, entry.querySelector(".note")?.textContent ?? ""]);
  return {
    host: [...document.querySelectorAll("#picked .host")].map((entry) => entry.textContent),
    runs: entries("#picked .best, #picked .runs li"),
    fails: entries("#picked .fails li"),
  };
}"""

COMPARE = """(pairs) => pairs.map(([a, b]) => {
  document.getElementById("a").value = a;
  document.getElementById("b").value = b;
  document.getElementById("b").dispatchEvent(new Event("input"));
  const at = (selector) => [...document.querySelectorAll(`#compared ${selector}`)];
  const texts = (elements) => elements.map((element) => element.textContent);
  return {
    changed: at("tbody tr").map((row) => texts([...row.children].slice(1))),
    swapped: texts(at("p:last-child")).join("").split(", ").filter(Boolean),
    shared: at("ul")[0].children.length,
  };
})"""


def tags_listed() -> list[str]:
    """The tags of all images, in the order of the list."""
    return [image.tag for image in listed().images]


def visit(page: Page, folder: Path, path: str) -> None:
    """Load *path*, even if it differs from the current page only in the fragment (`#…`)."""
    page.goto("about:blank")
    page.goto(f"file://{folder}/{path}")


def shown(page: Page) -> list[str]:
    """The tags of the images that the list shows."""
    tags: list[str] = page.eval_on_selector_all(
        "tr[data-tag]:not([hidden])", "rows => rows.map(row => row.dataset.tag)"
    )
    return tags


def english_shown(page: Page) -> list[str]:
    """The English texts and attributes of a page, including those that its script made."""
    return [text for text in page.evaluate(COLLECT) if english_in(text)]


def is_dark(page: Page) -> bool:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(number) for number in colour[4:-1].split(","))
    assert brightness == 3 * 255 or brightness < 150
    return brightness < 150
