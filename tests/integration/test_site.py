"""The pages of `ls --site` in a browser, from files: search, picker, comparison, keyboard, phone, colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, expect

from tests import site_scene
from tests.clients import browsing
from tests.node_tools import axe
from tests.site_scene import listed
from tests.unit.test_site import PROVED, hostile_site
from tools.kept import tables
from torchkiln.compare.locks import lock_change
from torchkiln.matrix.pick import parse_driver, parse_gpus, pick
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.site.folder import write_folder

KINDS = ("index.html", "pick.html#driver=535&gpu=H100", "compare.html", f"tags/{PROVED}.html")
PAGES = (*KINDS, *(f"zh/{page}" for page in KINDS))
FACTS = tables()[1]
NAMES = [name for kind in FACTS.gpus for name in (*kind.names, kind.capability)]
TAGS = [image.tag for image in listed().images]


@pytest.fixture(scope="module")
def browser() -> Iterator[tuple[Page, list[str]]]:
    """A page, and what it complains about; that it asks for nothing but files is checked at the end."""
    with browsing() as (page, _):
        asked: set[str] = set()
        faults: list[str] = []
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page, faults
        assert asked <= {"file", "data"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("catalogue") / "site"
    write_folder(place, site_scene.files())
    return place


@pytest.fixture
def page(browser: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page as it is first; nothing may be written to its console."""
    found, faults = browser
    found.set_viewport_size({"width": 1280, "height": 900})
    found.emulate_media(color_scheme="light")
    faults.clear()
    yield found
    assert faults == []


def visit(page: Page, folder: Path, path: str) -> None:
    """Open it anew: another fragment alone would not load it again."""
    page.goto("about:blank")
    page.goto(f"file://{folder}/{path}")


def shown(page: Page) -> list[str]:
    """The tags that the list shows."""
    tags: list[str] = page.eval_on_selector_all(
        "tr[data-tag]:not([hidden])", "rows => rows.map(row => row.dataset.tag)"
    )
    return tags


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_without_a_complaint_and_reads_in_one_language(
    page: Page, folder: Path, path: str
) -> None:
    visit(page, folder, path)

    expect(page.locator("h1")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == ("zh-Hans" if path.startswith("zh/") else "en")
    page.locator(".language").click()
    assert page.locator("html").get_attribute("lang") == ("en" if path.startswith("zh/") else "zh-Hans")
    assert page.locator("h1").count() == 1


# --- search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("2.7.1 devel", lambda image: image.resolution.cell.torch == "2.7.1" and "devel" in image.tag),
        ("H200", lambda image: any("H200" in gpus for gpus in image.tested_on)),
        ("torch 2.8 debian13", lambda image: image.tag.startswith("2.8.0") and "debian13" in image.tag),
        ("numpy==1.26.4", lambda image: ("numpy", "1.26.4") in packages(image)),
        ("NumPy 1.26.4 devel", lambda image: ("numpy", "1.26.4") in packages(image) and "devel" in image.tag),
        ("latest", lambda image: "latest" in image.aliases),
        ("no-such-thing", lambda image: False),
        ("", lambda image: True),
    ],
)
def test_the_search_finds(page: Page, folder: Path, query: str, expected: Any) -> None:
    visit(page, folder, "index.html")
    page.locator("#search").fill(query)

    tags = [image.tag for image in listed().images if expected(image)]
    assert shown(page) == tags
    if query:
        text = f"{len(tags)} of {len(TAGS)} images" if tags else "No image matches."
        assert page.locator("#found").text_content() == text


def packages(image: Any) -> set[tuple[str, str]]:
    return {(package.name, package.version) for package in image.packages}


def test_a_search_names_the_package_and_is_in_the_address(page: Page, folder: Path) -> None:
    visit(page, folder, "index.html")
    page.locator("#search").fill("numpy 1.26")
    assert page.locator("tr[data-tag]:not([hidden]) .match").first.text_content() == "numpy 1.26.4"
    before = shown(page)
    page.reload()
    assert page.locator("#search").input_value() == "numpy 1.26"
    assert shown(page) == before
    assert 0 < len(before) < len(TAGS)


# --- the picker -----------------------------------------------------------------------------------

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


def expected_of(driver: str, gpu: str, torch: str) -> dict[str, Any]:
    """The answer of `torchkiln pick` for the cells of the catalogue."""
    cells = [image.resolution.cell for image in listed().images]
    answers = [resolve(cell, *tables()) for cell in cells if not torch or cell.torch == torch]
    found = pick(answers, parse_driver(driver), parse_gpus([gpu] if gpu else [], FACTS))
    fails = [] if found.host else found.fails
    return {
        "host": list(found.host),
        "runs": [[tag_of(one.resolution), "; ".join(one.conditions)] for one in found.runs],
        "fails": [[tag_of(one.resolution), "; ".join(one.obstacles)] for one in fails],
    }


def drivers() -> st.SearchStrategy[str]:
    """Any version or branch, and those at the limits of the images and the GPUs."""
    limits = {
        version
        for image in listed().images
        for version in (image.resolution.min_driver, image.resolution.full_driver)
        if version
    }
    branches = {
        str(branch) for kind in FACTS.gpus for branch in (kind.first_branch, kind.last_branch) if branch
    }
    near = {f"{int(version[:3]) + step}" for version in limits | branches for step in (-1, 0, 1)}
    part = st.integers(0, 199).map(str)
    number = st.integers(100, 999).map(str)
    return (
        st.sampled_from(sorted(limits | branches | near))
        | number
        | st.builds(".".join, st.tuples(st.sampled_from(sorted(near)), part))
        | st.builds(".".join, st.tuples(st.sampled_from(sorted(near)), part, part))
    )


def test_the_picker_agrees_with_pick(page: Page, folder: Path) -> None:
    """In order, with every reason: for drivers around all limits, each GPU, and each torch."""
    visit(page, folder, "pick.html")
    torches = [*dict.fromkeys(image.resolution.cell.torch for image in listed().images)]

    @settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(drivers(), st.sampled_from(["", *NAMES]), st.sampled_from(["", *torches]))
    def agrees(driver: str, gpu: str, torch: str) -> None:
        assert page.evaluate(FILL, [driver, gpu, torch]) == expected_of(driver, gpu, torch)

    agrees()
    for gpu in NAMES:
        assert page.evaluate(FILL, ["580.65.06", gpu, ""]) == expected_of("580.65.06", gpu, ""), gpu


def test_the_picker_keeps_its_fields_in_the_address_and_says_what_a_driver_is(
    page: Page, folder: Path
) -> None:
    visit(page, folder, "pick.html#driver=R535&gpu=H100&torch=2.7.1")
    assert page.locator("#picked .best a").text_content() == PROVED
    page.locator("#driver").fill("53x")
    assert page.locator("#driver").get_attribute("aria-invalid") == "true"
    assert "Not a driver version" in (page.locator("#picked").text_content() or "")
    page.locator("#driver").fill("535")
    page.locator("#picked .best a").click()
    expect(page.locator("h1")).to_have_text(PROVED)


def test_the_picker_answers_in_chinese(page: Page, folder: Path) -> None:
    visit(page, folder, "zh/pick.html#driver=535&gpu=H100&torch=2.7.1")
    assert "处于 CUDA 兼容模式，因为驱动低于 560.35.05" in (
        page.locator("#picked .best").text_content() or ""
    )
    visit(page, folder, "zh/pick.html#driver=535&gpu=B200&torch=")
    expect(page.locator("#picked .host")).to_contain_text("驱动 535 不支持 B200（计算能力 10.0）")


# --- the comparison -------------------------------------------------------------------------------

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


def test_the_comparison_agrees_with_that_of_locks(page: Page, folder: Path) -> None:
    """For every pair of images; shared layers are those of `plan sharing`."""
    visit(page, folder, "compare.html")
    by_tag = {image.tag: image for image in listed().images}
    pairs = list(itertools.combinations(TAGS, 2))
    found = page.evaluate(COMPARE, pairs)
    for (a, b), seen in zip(pairs, found, strict=True):
        change = lock_change(a, by_tag[a].locked, by_tag[b].locked)
        rows = [[each.name, each.a or "–", each.b or "–"] for each in change.packages]
        assert sorted(seen["changed"]) == sorted(rows), (a, b)
        assert seen["swapped"] == sorted(each.name for each in change.swapped), (a, b)
        assert seen["shared"] == sum(b in layer.images for layer in by_tag[a].layers), (a, b)
    assert any(seen["swapped"] for seen in found)


# --- for everybody --------------------------------------------------------------------------------


def test_all_can_be_done_by_the_keyboard(page: Page, folder: Path) -> None:
    visit(page, folder, "index.html")
    assert page.evaluate("location.hash") == ""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    page.keyboard.type("h200 ownuse")
    assert len(shown(page)) == 1
    page.keyboard.press("Escape")
    assert shown(page) == TAGS
    page.keyboard.type("a/b")  # a slash in the field is a character
    assert page.locator("#search").input_value() == "a/b"
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(TAGS[0])
    visit(page, folder, "index.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_colours_follow_the_system(page: Page, folder: Path) -> None:
    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(number) for number in colour[4:-1].split(","))

    visit(page, folder, "index.html")
    light = brightness()
    page.emulate_media(color_scheme="dark")
    assert (light, brightness() < 150) == (3 * 255, True)


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_never_scrolls_sideways(page: Page, folder: Path, path: str) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    visit(page, folder, path)
    page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_fault(page: Page, folder: Path, path: str) -> None:
    """WCAG AA and the rules of good practice, with everything opened; the Chinese pages in the dark."""
    program = axe()
    page.emulate_media(color_scheme="dark" if path.startswith("zh/") else "light")
    visit(page, folder, path)
    page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true; })")
    page.evaluate(program)
    found = page.evaluate("axe.run().then((result) => result.violations)")
    assert [(fault["id"], fault["nodes"][0]["html"][:300]) for fault in found] == []


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
    assert plain.locator("tr[data-tag]").count() == len(TAGS)
    expect(plain.locator("#search")).to_be_hidden()
    plain.goto(f"file://{folder}/pick.html")
    expect(plain.get_by_text("torchkiln pick --driver 535 --gpu H100")).to_be_visible()
    plain.close()
