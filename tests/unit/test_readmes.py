"""Both READMEs are short, and have the same commands, links and numbers; sources prove the numbers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.planned import FACTS
from tests.readmes import CHINESE, ENGLISH, Scene, blocks, commands, scene_of
from torchkiln.matrix.matrix import load
from torchkiln.util.places import ROOT

BOTH = [ENGLISH, CHINESE]
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)]+)\)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TRANSLATED = {"docs/deploy": "deploy/README", "docs/recipes": "examples/recipes/README"}
_ONE_LANGUAGE = {"README.md", "README.zh-CN.md", "docs/mirrors.zh-CN.md"}


def numbers(text: str) -> list[str]:
    """The numbers in *text*, sorted as strings; numbers in code and in links do not count."""
    return sorted(_NUMBER.findall(_LINK.sub("]", _CODE.sub("", text))))


def rows(page: Path, title: str) -> list[str]:
    """The rows of the table below the heading *title*, without the table's header."""
    part = page.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    found = [line for line in part.splitlines() if line.startswith("| ")]
    return found[2:]


@pytest.mark.parametrize("page", BOTH, ids=lambda page: page.name)
def test_a_readme_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) < 200


def test_the_same_commands_in_the_same_order() -> None:
    assert commands(ENGLISH.read_text()) == commands(CHINESE.read_text())
    assert len(commands(ENGLISH.read_text())) > 15


@pytest.mark.parametrize("language", ["yaml", "dockerfile", "console"])
def test_the_same_code(language: str) -> None:
    english, chinese = (blocks(page.read_text(), language) for page in BOTH)

    assert english == chinese
    assert english


def test_the_same_numbers() -> None:
    english, chinese = (Counter(numbers(page.read_text())) for page in BOTH)

    assert (english - chinese, chinese - english) == (Counter(), Counter())
    assert english.total() > 50


def test_the_same_number_of_sections_tables_and_generated_parts() -> None:
    for pattern in (r"^## ", r"^\| ", r"^<!-- .*$", r"^- ", r"^```(\w*)$"):
        english, chinese = (re.findall(pattern, page.read_text(), re.MULTILINE) for page in BOTH)
        assert english == chinese, pattern


def test_the_same_links() -> None:
    """The Chinese README may link to the Chinese version of a page, if there is one."""
    english, chinese = (set(_LINK.findall(page.read_text())) - _ONE_LANGUAGE for page in BOTH)
    originals = {link: link.replace(".zh-CN.md", ".md") for link in chinese}

    assert english == {
        original if (ROOT / original).is_file() else link for link, original in originals.items()
    }


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_a_translation_has_the_commands_names_and_figures_of_its_page(english: str, chinese: str) -> None:
    """It may leave out sections and sentences."""
    code = re.compile(r"```sh\n[^`]*?```|^    \S.*$|`[^`\n]+`", re.MULTILINE)
    original, translated = ((ROOT / page).read_text() for page in (f"{english}.md", f"{chinese}.zh-CN.md"))
    tables = [
        [numbers(row) for row in re.findall(r"^\| .*", text.split("\n## Measured")[0], re.MULTILINE)]
        for text in (original, translated)
    ]

    assert len(code.findall(translated)) > 20
    assert [found for found in code.findall(translated) if found not in original] == []
    assert set(numbers(translated)) <= set(numbers(original)) | {"70", "1750"}  # 7 and 175 billion
    assert [len(row) for row in tables[1] if row] == [len(row) for row in tables[0] if row]


@pytest.mark.parametrize("page", ["README", "examples/recipes/README", "deploy/README", "docs/troubles"])
def test_a_page_and_its_translation_link_each_other(page: str) -> None:
    name = page.rpartition("/")[2]
    assert f"[中文]({name}.zh-CN.md)" in (ROOT / f"{page}.md").read_text()
    assert f"[English]({name}.md)" in (ROOT / f"{page}.zh-CN.md").read_text()


@pytest.mark.parametrize("command", dict.fromkeys(c for page in BOTH for c in commands(page.read_text())))
def test_a_test_runs_each_command(command: str) -> None:
    assert scene_of(command) in Scene


def test_a_command_without_a_test_is_refused() -> None:
    with pytest.raises(AssertionError, match="no test runs this command: rm -rf dist"):
        scene_of("rm -rf dist")


def test_commands_are_those_of_all_kinds_of_blocks() -> None:
    text = (
        "`not --this`\n```sh\n# a comment\na --b \\\n   c  # why\n```\n```console\n$ d\nout\n```\n"
        "```yaml\nsteps:\n  - run: e f\n```\n"
    )

    assert commands(text.replace("# a comment\n", "")) == ["a --b c", "d", "e f"]


@pytest.mark.parametrize("page", BOTH, ids=lambda page: page.name)
def test_ten_lines_of_matrix_and_of_ci(page: Path) -> None:
    matrix, workflow = blocks(page.read_text(), "yaml")

    assert (len(matrix.splitlines()), len(workflow.splitlines())) == (10, 10)
    assert load(matrix, FACTS).torch == ("2.7.1", "2.8.0")


@pytest.mark.parametrize(("page", "title"), [(ENGLISH, "How fast"), (CHINESE, "有多快")])
def test_figures_of_speed_and_size_are_measured_ones(page: Path, title: str) -> None:
    measured = set(_NUMBER.findall((ROOT / "docs/numbers.json").read_text()))

    assert len(rows(page, title)) == 5
    assert [number for row in rows(page, title) for number in numbers(row) if number not in measured] == []


@pytest.mark.parametrize(("page", "title"), [(ENGLISH, "What was proved"), (CHINESE, "验证了什么")])
def test_a_proof_names_a_page_that_has_its_numbers(page: Path, title: str) -> None:
    missing = []
    for row in rows(page, title):
        (target,) = _LINK.findall(row)
        source = _NUMBER.findall((ROOT / target).read_text())
        # A page may write "one" for the count in "1 devel image" or "1 × H100".
        missing += [(target, number) for number in numbers(row) if number not in {*source, "1"}]

    assert len(rows(page, title)) == 6
    assert missing == []


@pytest.mark.parametrize("page", BOTH, ids=lambda page: page.name)
def test_a_newcomer_reaches_the_answer_by_one_link(page: Path) -> None:
    """Add a package, another Python, my driver is 470, errors, the cache, publish, no network."""
    links = [link.replace(".zh-CN.md", ".md") for link in _LINK.findall(page.read_text().split("\n## ")[0])]
    tasks = ("projects", "systems", "grid", "troubles", "cache", "publishing", "vault")

    assert [task for task in tasks if f"docs/{task}.md" not in links] == []


def test_there_is_no_public_registry_and_both_say_so() -> None:
    assert "There is no public registry with these images yet: you build them" in ENGLISH.read_text()
    assert "目前没有提供这些镜像的公开仓库，需要自己构建" in CHINESE.read_text()


def test_the_index_page_lists_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md")

    assert [page for page in pages if f"]({page})" not in index] == []
