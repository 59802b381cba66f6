"""The pages of `ls --site` in a browser: search, picker, comparison, commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, expect

from tests.site_browser import COMPARE, FACTS, FILL, NAMES, shown, tags_listed, visit
from tests.site_scene import listed
from tests.unit.test_site import PROVED
from tools.kept import tables
from torchkiln.matrix.pick import parse_driver, parse_gpus, pick
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedCell

pytestmark = pytest.mark.proof

# --- search ---------------------------------------------------------------------------------------


QUERIES: dict[str, Callable[[Any], bool]] = {
    "2.7.1 devel": lambda image: image.resolution.cell.torch == "2.7.1" and "devel" in image.tag,
    "H200": lambda image: any("H200" in gpus for gpus in image.tested_on),
    "torch 2.8 debian13": lambda image: image.tag.startswith("2.8.0") and "debian13" in image.tag,
    "numpy==1.26.4": lambda image: ("numpy", "1.26.4") in packages(image),
    "NumPy 1.26.4 devel": lambda image: ("numpy", "1.26.4") in packages(image) and "devel" in image.tag,
    "latest": lambda image: "latest" in image.aliases,
    "no-such-thing": lambda _: False,
    "": lambda _: True,
}


def test_the_search_finds(page: Page, folder: Path) -> None:
    visit(page, folder, "index.html")
    for query, expected in QUERIES.items():
        page.locator("#search").fill(query)

        tags = [image.tag for image in listed().images if expected(image)]
        assert shown(page) == tags, query
        if query:
            text = f"{len(tags)} of {len(tags_listed())} images" if tags else "No image matches."
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
    assert 0 < len(before) < len(tags_listed())


# --- the picker -----------------------------------------------------------------------------------


@cache
def resolved() -> list[Resolution]:
    return [resolve(image.resolution.cell, *tables()) for image in listed().images]


def expected_of(driver: str, gpu: str, torch: str) -> dict[str, Any]:
    """The result that `torchkiln pick` gives for the images of the catalogue."""
    answers = [answer for answer in resolved() if not torch or answer.cell.torch == torch]
    found = pick(answers, parse_driver(driver), parse_gpus([gpu] if gpu else [], FACTS))
    fails = [] if found.host else found.fails
    return {
        "host": list(found.host),
        "runs": [[tag_of(one.resolution), "; ".join(one.conditions)] for one in found.runs],
        "fails": [[tag_of(one.resolution), "; ".join(one.obstacles)] for one in fails],
    }


def drivers() -> st.SearchStrategy[str]:
    """Draw driver versions: random ones, and those near the minimum and full drivers of images and GPUs."""
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
    """For random drivers, GPUs and torch versions, page and command show the same images and reasons."""
    visit(page, folder, "pick.html")
    torches = [*dict.fromkeys(image.resolution.cell.torch for image in listed().images)]

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(drivers(), st.sampled_from(["", *NAMES]), st.sampled_from(["", *torches]))
    def agrees(driver: str, gpu: str, torch: str) -> None:
        assert page.evaluate(FILL, [driver, gpu, torch]) == expected_of(driver, gpu, torch)

    agrees()
    for gpu in NAMES[::3]:
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


def test_the_other_language_begins_with_the_same_fields(page: Page, folder: Path) -> None:
    visit(page, folder, "pick.html#driver=535&gpu=B200&torch=2.7.1")
    page.locator("#driver").fill("575.1")
    page.locator(".language").click()
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    fields = {name: page.locator(f"#{name}").input_value() for name in ("driver", "gpu", "torch")}
    assert fields == {"driver": "575.1", "gpu": "B200", "torch": "2.7.1"}


def test_the_best_image_has_its_conditions_or_says_that_there_are_none(page: Page, folder: Path) -> None:
    visit(page, folder, "pick.html#driver=600.1&gpu=H100")
    best = page.locator("#picked .best")
    expect(best).to_contain_text("It runs there without restrictions.")
    page.locator("#driver").fill("580.65.06")
    expect(best).to_contain_text("in CUDA's compatibility mode")
    expect(best).not_to_contain_text("without restrictions")


# --- the comparison -------------------------------------------------------------------------------


def test_the_comparison_agrees_with_that_of_locks(page: Page, folder: Path) -> None:
    """The page shows the differences of the locks, for neighbours in the list and every 40th of all pairs."""
    visit(page, folder, "compare.html")
    by_tag = {image.tag: image for image in listed().images}
    tags = tags_listed()
    pairs = [*itertools.pairwise(tags), *list(itertools.combinations(tags, 2))[::40]]
    assert set(itertools.chain(*pairs)) == set(by_tag)
    found = page.evaluate(COMPARE, pairs)
    for (a, b), seen in zip(pairs, found, strict=True):
        left, right = contents(by_tag[a].locked), contents(by_tag[b].locked)
        rows = [
            [key[1], left[key][0] if key in left else "–", right[key][0] if key in right else "–"]
            for key in left.keys() | right.keys()
        ]
        assert sorted(seen["changed"]) == sorted(row for row in rows if row[1] != row[2]), (a, b)
        swapped = [
            f"{key[1]} {left[key][0]}"
            for key in left.keys() & right.keys()
            if left[key][0] == right[key][0] and left[key] != right[key]
        ]
        assert seen["swapped"] == sorted(swapped), (a, b)
        assert seen["shared"] == sum(b in layer.images for layer in by_tag[a].layers), (a, b)
    assert any(seen["swapped"] for seen in found)


def contents(locked: LockedCell) -> dict[tuple[str, str], tuple[str, str]]:
    """Version and SHA-256 of each package, by system and name; the lock has no hash of an OS package."""
    wheels = {("python", wheel.name): (wheel.version, wheel.sha256) for wheel in locked.wheels}
    parts = {("toolkit", part.component): (part.version, part.sha256) for part in locked.archives}
    return wheels | parts | {("os", deb.name): (deb.version, "") for deb in locked.os_packages}


# --- commands --------------------------------------------------------------------------------------


def test_a_command_is_copied(page: Page, folder: Path) -> None:
    """A click copies the command. If the browser forbids this, the click selects the command instead."""
    visit(page, folder, f"zh/tags/{PROVED}.html")
    page.context.grant_permissions(["clipboard-write"])
    button = page.get_by_role("button", name="复制").first
    button.click()
    expect(page.get_by_role("button", name="已复制")).to_be_visible()
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    page.get_by_role("button", name="复制", exact=True).first.click()
    assert page.evaluate("String(getSelection())") == "torchkiln verify dist"
