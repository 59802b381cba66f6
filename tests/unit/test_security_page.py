"""docs/attacks.md has tests and undefended attacks for each actor; SECURITY.md is short."""

from __future__ import annotations

import re

import pytest

from tools import attacks
from torchkiln.util.places import ROOT

PAGE = (ROOT / "docs/attacks.md").read_text()
ACTORS = {
    *("hostile index or wheel", "hostile registry", "hostile image or layout", "hostile project folder"),
    *("hostile git repository", "hostile matrix or lock in a pull request", "report forger", "key thief"),
    *("hostile cache on a shared machine", "malicious mirror of the distribution"),
    *("user in the container", "network in the middle"),
}
_ROW = re.compile(r"^\| `(\w+/\S+)` \| (.+) \| (\d+) \|$", re.MULTILINE)


def sections() -> dict[str, str]:
    """The text about each actor."""
    parts = PAGE.split("\n## ")[1:]
    return {title.lower(): text for title, _, text in (part.partition("\n") for part in parts)}


def test_each_actor_has_tests_and_undefended_attacks() -> None:
    found = sections()

    assert set(found) == ACTORS
    assert [actor for actor, text in found.items() if not _ROW.search(text)] == []
    assert [actor for actor, text in found.items() if not re.search(r"^- .+: .+", text, re.MULTILINE)] == []


def test_each_module_makes_a_claim_and_has_tests() -> None:
    rows = _ROW.findall(PAGE)

    assert attacks.filled(re.sub(r"[^|]+\| \d+ \|$", " stale | 0 |", PAGE, flags=re.MULTILINE)) == PAGE
    assert sum(int(count) for _, _, count in rows) > 400
    assert [path for path, claim, count in rows if not claim or not int(count)] == []


def test_all_tests_of_hostile_input_are_listed() -> None:
    listed = {path for path, _, _ in _ROW.findall(PAGE)}
    named = ("hostile", "confined", "confused", "limits")
    found = {
        str(path.relative_to(ROOT / "tests").with_suffix(""))
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(word in path.stem for word in named)
    }

    assert found - listed == set()


def test_a_module_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"there is no test module tests/unit/test_gone\.py"):
        attacks.filled("| `unit/test_gone` | A claim. | 1 |\n")


def test_the_page_for_reporters_is_short() -> None:
    assert len((ROOT / "SECURITY.md").read_bytes()) < 8000
