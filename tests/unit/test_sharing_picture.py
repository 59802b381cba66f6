"""The picture of what images share: sound, whole, and true to scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.test_sharing import DRAWN, Drawn, compressed, stacks, unpacked
from tools.sharing_svg import COLOURS, GROUNDS, picture
from torchkiln.compare.sharing import Level, Stack, Storage, share
from torchkiln.util.places import ROOT
from torchkiln.util.sizes import size

SVG = "{http://www.w3.org/2000/svg}"
# Each layer is wide enough to be seen; 0 and 1 are shared everywhere, 3 stands on something else.
IMAGES: list[list[Drawn]] = [[(3, 0), (4, 0)], [(3, 0), (2, 1), (4, 0)], [(3, 0), (2, 0), (4, 0)]]


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


def _distinct(place: Storage) -> int:
    """A layer that several images have is one block in each; one that an image alone has, one each time."""
    return sum(
        len({one for one in image if one and one.shared}) + sum(bool(one and not one.shared) for one in image)
        for image in place.images
    )


@given(DRAWN)
def test_no_two_layers_of_a_row_lie_on_each_other(images: list[list[Drawn]]) -> None:
    """But for what the thinnest have so as to be seen."""
    rows: dict[float, list[tuple[float, float]]] = {}
    for told in blocks(drawn(images)[0]).values():
        for _, rects in told:
            for x, y, width in rects:
                rows.setdefault(y, []).append((x, x + width))
    for row in rows.values():
        row.sort()
        assert all(end <= begin + 0.8 for (_, end), (begin, _) in pairwise(row))


@given(st.lists(st.text(), min_size=1, max_size=3))
@example(["\ufffe\uffff\ud800\x00\x1b]]>", "<&\"'>"])
def test_whatever_it_is_called_it_stays_xml(names: list[str]) -> None:
    """A layout's tags and titles are what somebody else wrote."""
    levels = tuple(Level(title=name, blob=one.levels[0].blob) for name in names for one in stacks([[(1, 0)]]))
    ET.fromstring(picture(share([Stack(tag=name, levels=levels) for name in names])))


def test_a_shared_layer_has_one_column_and_one_colour_in_a_panel() -> None:
    told = blocks(drawn(IMAGES)[0])
    registry, disk = told["layer 3"]

    assert registry[0] == disk[0] == "c0"
    for _, rects in (registry, disk):
        assert len(rects) == 3
        assert len({x for x, _, _ in rects}) == 1
        assert len({y for _, y, _ in rects}) == 3


def test_one_that_is_kept_once_more_keeps_its_colour_and_has_no_column() -> None:
    """On a disk layer 4 has a column for the two images in which it stands on the same; once it is alone."""
    registry, *disk = blocks(drawn(IMAGES)[0])["layer 4"]

    assert {kind for kind, _ in (registry, *disk)} == {registry[0]}
    assert [len(rects) for _, rects in (registry, *disk)] == [3, 2, 1]
    assert disk[0][1][0][0] < disk[1][1][0][0]


def test_what_one_image_has_alone_is_grey() -> None:
    told = blocks(drawn([[(3, 0), (4, 0)], [(3, 0), (2, 0)]])[0])

    assert [kind for kind, _ in told["layer 4"]] == ["own", "own"]


def test_widths_are_to_scale() -> None:
    """Within what stands between two layers."""
    told = blocks(drawn(IMAGES)[0])
    (three, (_, [*_, four])), sizes = (told["layer 3"][0], told["layer 4"][0]), (3, 4)
    assert abs(four[2] / three[1][0][2] - compressed(4, 0) / compressed(3, 0)) < 0.1
    three, (_, [*_, four]) = told["layer 3"][1], told["layer 4"][1]
    assert abs(four[2] / three[1][0][2] - unpacked(sizes[1]) / unpacked(sizes[0])) < 0.1


def test_colours_are_legible_on_both_grounds() -> None:
    """Contrast of 3 or more, as WCAG asks of what is no text."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05

    for colour in COLOURS:
        for ground in GROUNDS:
            assert max(light(colour), light(ground)) / min(light(colour), light(ground)) >= 3


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
