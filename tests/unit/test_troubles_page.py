"""docs/troubles.md and its translation have the same headings, commands and tests; the tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.troubles import CHINESE, PAGE, examples, sections
from torchkiln.util.places import ROOT

TITLES = sections(PAGE)
_FENCE = re.compile(r"^```.*?^```$|^    [^\n]+$|<!-- run: \w+ -->", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"`(tests/\S+?\.py)::(\w+)`")
LABELS = {
    PAGE: ("Meaning.", "`doctor`.", "`torchkiln doctor`.", "What to do.", "Reproduced."),
    CHINESE: ("含义。", "`doctor`。", "`torchkiln doctor`。", "处理办法。", "复现。"),
}


def test_there_are_eighteen_errors() -> None:
    assert len(TITLES) == 18


def test_the_translation_has_the_same_headings() -> None:
    """Headings are error messages, which are English in both pages."""
    assert list(sections(CHINESE)) == list(TITLES)


@pytest.mark.parametrize("title", TITLES)
def test_the_translation_has_the_same_code_and_tests(title: str) -> None:
    english, chinese = TITLES[title], sections(CHINESE)[title]
    assert _FENCE.findall(chinese) == _FENCE.findall(english)
    assert _TEST.findall(chinese) == _TEST.findall(english)


@pytest.mark.parametrize("page", LABELS, ids=lambda page: page.name)
@pytest.mark.parametrize("title", TITLES)
def test_each_entry_has_its_five_parts(title: str, page: Path) -> None:
    """They are: meaning, two doctor commands, remedy, and whether the error was reproduced."""
    found = re.findall(r"^- \*\*(.+?)\*\* \S", sections(page)[title], re.MULTILINE)
    assert tuple(found) == LABELS[page]


@pytest.mark.parametrize("title", TITLES)
def test_each_entry_names_tests_that_exist(title: str) -> None:
    named = _TEST.findall(TITLES[title])
    missing = [
        (file, name)
        for file, name in named
        if not (ROOT / file).is_file()
        or name not in {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_text()).body}
    ]
    assert named
    assert missing == []


def test_examples_are_run() -> None:
    """An example with an unknown image name would be skipped."""
    found = list(examples())
    assert {example.image for example in found} == {"small", "torch"}
    assert len({example.title for example in found}) >= 12


def test_an_entry_with_an_example_names_the_test_that_runs_it() -> None:
    runs = {
        "small": "tests/integration/test_troubles.py::test_errors_of_the_page",
        "torch": "tests/proof/test_at_work.py::test_errors_of_the_troubles_page",
    }
    assert [
        example.title for example in examples() if f"`{runs[example.image]}`" not in TITLES[example.title]
    ] == []
