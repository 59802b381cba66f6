"""The picture of what images share: sound, whole, and true to scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.test_sharing import DRAWN, Drawn, stacks
from tools.sharing_svg import picture
from torchkiln.compare.sharing import Level, Place, Stack, share
from torchkiln.util.places import ROOT
from torchkiln.util.sizes import size

SVG = "{http://www.w3.org/2000/svg}"


def drawn(images: list[list[Drawn]]) -> tuple[ET.Element, str]:
    text = picture(share(stacks(images)))
    return ET.fromstring(text), text


def blocks(root: ET.Element) -> dict[str, list[tuple[str, list[tuple[float, float, float]]]]]:
    """By title of a block without its number: class and (x, y, width) of its rectangles."""
    found: dict[str, list[tuple[str, list[tuple[float, float, float]]]]] = {}
    for group in root.iter(f"{SVG}g"):
        title = re.sub(r"^\d+: |,.*", "", group.findtext(f"{SVG}title") or "")
        rects = [
            (float(one.attrib["x"]), float(one.attrib["y"]), float(one.attrib["width"]))
            for one in group.iter(f"{SVG}rect")
        ]
        found.setdefault(title, []).append((group.attrib["class"], rects))
    return found


@given(DRAWN)
def test_every_tag_and_the_sums_are_in_it(images: list[list[Drawn]]) -> None:
    """A rectangle for each layer of each image whose place is known, none beside the sheet."""
    found = share(stacks(images))
    root, text = drawn(images)
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]

    for stack in found.stacks:
        assert texts.count(stack.tag) == 2
    for name, place in (("In a registry", found.registry), ("On a host's disk", found.disk)):
        (told,) = (one for one in texts if one.startswith(name))
        sums = f": {size(place.unique)} kept for {size(place.total)} of images"
        ratio = "" if place.ratio is None else f" = {place.ratio:.3f}"
        lost = f"; layers not known: {place.unknown}" if place.unknown else ""
        assert told.partition("ed")[2] == sums + ratio + lost
    assert text == picture(share(stacks(images)))
    rects = [one for told in blocks(root).values() for _, group in told for one in group]
    assert len(rects) == sum(_distinct(place) for place in (found.registry, found.disk))
    assert all(x > 0 and x + width < 901.5 for x, _, width in rects)
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")


def _distinct(place: Place) -> int:
    """A layer that several images have is one block in each; one that an image alone has, one each time."""
    return sum(
        len({one for one in image if one and one.shared}) + sum(bool(one and not one.shared) for one in image)
        for image in place.images
    )


@given(st.lists(st.text(), min_size=1, max_size=3))
@example(["\ufffe\uffff\ud800\x00\x1b]]>", "<&\"'>"])
def test_whatever_it_is_called_it_stays_xml(names: list[str]) -> None:
    """A layout's tags and titles are what somebody else wrote."""
    levels = tuple(Level(title=name, blob=one.levels[0].blob) for name in names for one in stacks([[(1, 0)]]))
    ET.fromstring(picture(share([Stack(tag=name, levels=levels) for name in names])))


def test_the_committed_picture_is_small_and_needs_nothing_from_elsewhere() -> None:
    """That it is fresh is test_docs' affair."""
    text = (ROOT / "docs" / "sharing.svg").read_text()
    locks = {path.parent.name: path.read_bytes() for path in (ROOT / "images").glob("*/lock.json")}
    tags = [tag for tag, lock in locks.items() if b'"by_record"' not in lock]

    assert len(text.encode()) < 5_000 * len(tags)
    assert re.findall(r"script|@import|url\(|href|https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert len(tags) >= 9
    assert {tag: text.count(f">{tag}</text>") for tag in tags} == dict.fromkeys(tags, 2)
    assert "prefers-color-scheme: dark" in text
