"""The differences of two file trees, and the files that list allowed differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import parity
from tests.parity import Difference, WholeImage, differences
from torchkiln.compare.layers import settings_of
from torchkiln.model.contents import Kind, TreeEntry

PARTS = st.text("ab.-é ", min_size=1, max_size=4)
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)


@st.composite
def entries(draw: st.DrawFn, kind: Kind | None = None) -> TreeEntry:
    """Any entry at a path, with the attributes of its kind."""
    kind = kind or draw(st.sampled_from(get_args(Kind)))
    entry = TreeEntry(
        kind=kind,
        mode=draw(st.integers(0, 0o7777)),
        owner=(draw(st.integers(0, 70_000)), draw(st.integers(0, 70_000))),
        xattrs=tuple(draw(st.dictionaries(PARTS, PARTS, max_size=2)).items()),
    )
    if kind == "file":
        return replace(entry, size=draw(st.integers(0, 1 << 40)), sha256=draw(HEX))
    if kind == "link":
        return replace(entry, link=draw(PATHS))
    if kind == "device":
        sort = draw(st.sampled_from(["char", "block"]))
        return replace(entry, device=(sort, draw(st.integers(0, 300)), draw(st.integers(0, 300))))
    return entry


TREES = st.dictionaries(PATHS, entries(), max_size=6)
SETTINGS = st.dictionaries(PARTS, PARTS, max_size=4)
IMAGES = st.builds(WholeImage, tree=TREES, settings=SETTINGS)


@given(IMAGES)
def test_an_image_does_not_differ_from_itself(image: WholeImage) -> None:
    again = WholeImage(tree={**image.tree}, settings={**image.settings})

    assert differences(image, again) == ()


@given(IMAGES, IMAGES)
def test_only_differences_are_reported_and_symmetrically(a: WholeImage, b: WholeImage) -> None:
    found, back = differences(a, b), differences(b, a)

    turned = {"only-in-a": "only-in-b", "only-in-b": "only-in-a"}
    assert {
        (difference.at, turned.get(difference.what, difference.what), difference.b, difference.a)
        for difference in found
    } == {(difference.at, difference.what, difference.a, difference.b) for difference in back}
    unlike = {path for path in {**a.tree, **b.tree} if a.tree.get(path) != b.tree.get(path)}
    assert {difference.at for difference in found if difference.what != "setting"} == unlike


CHANGES: dict[str, tuple[Kind | None, dict[str, Any]]] = {
    "mode": (None, {"mode": 0o10000}),  # one that `entries` never draws
    "owner": (None, {"owner": (70_001, 0)}),
    "xattrs": (None, {"xattrs": (("security.capability", "x"),)}),
    "content": ("file", {"sha256": "no hash"}),
    "link": ("link", {"link": "nowhere else"}),
    "device": ("device", {"device": ("char", 999, 0)}),
}


@pytest.mark.parametrize("what", CHANGES)
@given(st.data())
def test_a_planted_change_is_the_only_difference(what: str, data: st.DataObject) -> None:
    kind, change = CHANGES[what]
    image, path, entry = data.draw(IMAGES), data.draw(PATHS), data.draw(entries(kind))
    a = replace(image, tree={**image.tree, path: entry})
    b = replace(image, tree={**image.tree, path: replace(entry, **change)})

    (found,) = differences(a, b)
    assert (found.at, found.what) == (path, what)
    assert found.a != found.b


@given(IMAGES, PATHS, entries())
def test_a_path_that_one_side_lacks(image: WholeImage, path: str, entry: TreeEntry) -> None:
    without = replace(
        image, tree={name: difference for name, difference in image.tree.items() if name != path}
    )
    there = replace(image, tree={**without.tree, path: entry})

    (found,) = differences(there, without)
    assert (found.at, found.what, found.b) == (path, "only-in-a", "")
    (found,) = differences(without, there)
    assert (found.at, found.what, found.a) == (path, "only-in-b", "")


@given(IMAGES, PARTS, PARTS)
def test_a_setting(image: WholeImage, name: str, value: str) -> None:
    a = replace(image, settings={**image.settings, name: value})
    b = replace(image, settings={**image.settings, name: value + "!"})

    assert differences(a, b) == (Difference(at=name, what="setting", a=value, b=value + "!"),)


def test_another_type_is_reported_once() -> None:
    """Differing content or link targets are not reported in addition."""
    file = TreeEntry(kind="file", mode=0o777, owner=(0, 0), size=1, sha256="x")
    link = TreeEntry(kind="link", mode=0o777, owner=(0, 0), link="to")

    found = differences(*(WholeImage(tree={"p": entry}, settings={}) for entry in (file, link)))

    assert found == (Difference(at="p", what="type", a="file", b="link"),)


def of_lines(a: str, b: str) -> list[tuple[str, str, str]]:
    """The differences between two versions of a file, with the texts *a* and *b*."""
    images = [
        WholeImage(
            tree={"p": TreeEntry(kind="file", mode=0o644, owner=(0, 0), sha256=f"hash of {text}", text=text)},
            settings={},
        )
        for text in (a, b)
    ]
    return [(difference.what, difference.a, difference.b) for difference in differences(*images)]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("x\ny\n", "x\n", [("line", "y", "")]),
        ("x\n", "x\nx\nz\n", [("line", "", "x"), ("line", "", "z")]),
        ("x\ny\n", "x\nz\n", [("line", "y", ""), ("line", "", "z")]),
        ("x\ny\n", "y\nx\n", [("order", "x", "y")]),
        ("x\ny\nz\n", "y\nx\n", [("line", "z", ""), ("order", "x", "y")]),
        ("x\n", "x", [("content", "different line endings", "different line endings")]),
        ("x\n", "x\r\n", [("content", "different line endings", "different line endings")]),
    ],
)
def test_texts_line_by_line(a: str, b: str, expected: list[tuple[str, str, str]]) -> None:
    assert of_lines(a, b) == expected


@given(st.lists(PARTS), st.lists(PARTS))
def test_different_texts_are_never_equal(a: list[str], b: list[str]) -> None:
    assert bool(of_lines("\n".join(a), "\n".join(b))) == ("\n".join(a) != "\n".join(b))


def test_settings_of_a_layout_and_of_an_engine_are_the_same() -> None:
    """An engine writes unset fields, too, with empty values."""
    ours = {"Env": ["A=1", "B=x=y"], "Labels": {"l": ""}, "ExposedPorts": {"22/tcp": {}}, "Cmd": ["sh", "-c"]}
    of_engine = {**ours, "Hostname": "", "Tty": False, "OnBuild": None, "User": "", "Volumes": {}}

    assert settings_of(of_engine, "linux/amd64") == settings_of(ours, "linux/amd64")
    assert settings_of(ours, "linux/amd64") == {
        "Platform": "linux/amd64",
        "Env A": "1",
        "Env B": "x=y",
        "Labels l": "yes",
        "ExposedPorts 22/tcp": "yes",
        "Cmd": '["sh", "-c"]',
    }


LIST = """\
- path: opt/[^/]+/INSTALLER
  what: content
  reason: names who installed
- path: opt/[^/]+/RECORD
  what: line
  line: .*[.]pyc,,
  reason: no byte-code on the other side
- setting: Env TZ
  what: setting
  reason: the zone of the builder
"""


def written(tmp_path: Path, text: str) -> tuple[parity.AllowedDifference, ...]:
    """Write *text* to a file with a list of allowed differences."""
    (tmp_path / "list.yaml").write_text(text)
    return parity.allowed(tmp_path / "list.yaml")


INSTALLER = Difference(at="opt/x/INSTALLER", what="content", a="pip", b="kiln")
LINE = Difference(at="opt/x/RECORD", what="line", b="a.pyc,,")
ZONE = Difference(at="Env TZ", what="setting", a="UTC")


def test_differences_that_match_an_entry_are_allowed(tmp_path: Path) -> None:
    entries = written(tmp_path, LIST)

    sifted = parity.sift((INSTALLER, LINE, ZONE), entries)

    assert sifted.allowed == (INSTALLER, LINE, ZONE)
    assert (sifted.left, sifted.idle) == ((), ())


@pytest.mark.parametrize(
    "other",
    [
        Difference(at="opt/x/INSTALLER", what="mode", a="0644", b="0600"),
        Difference(at="opt/x/y/INSTALLER", what="content", a="pip", b="kiln"),
        Difference(at="/opt/x/INSTALLER", what="content", a="pip", b="kiln"),
        Difference(at="opt/x/RECORD", what="line", a="a.py,,"),
        Difference(at="opt/x/RECORD", what="order", a="a.pyc,,", b="b.pyc,,"),
        Difference(at="Env TZ2", what="setting", a="UTC"),
    ],
)
def test_differences_that_match_partially_remain(tmp_path: Path, other: Difference) -> None:
    sifted = parity.sift((other, LINE), written(tmp_path, LIST))

    assert sifted.left == (other,)
    assert [entry.what for entry in sifted.idle] == ["content", "setting"]


def test_our_list_is_short_and_has_reasons() -> None:
    entries = parity.allowed()

    assert len(entries) == 4
    assert all(len(entry.reason) > 15 for entry in entries)
