"""The texts of the catalogue: both languages have all of them; the Chinese pages mark what is English."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.chinese import ShownTexts, chinese_texts, english_in
from tests.site_scene import Page, files, listed, pages, rendered
from tests.unit.test_site import PROVED
from tools.kept import tables
from torchkiln.matrix.pick import SENTENCES
from torchkiln.model.digest import Digest
from torchkiln.publishing.catalog import CatalogEntry
from torchkiln.publishing.warnings import WARNINGS
from torchkiln.site import pages as texts
from torchkiln.site.catalogue import Published
from torchkiln.site.pages import TEMPLATES
from torchkiln.util.sentences import said

ENGLISH, CHINESE = (language.texts for language in texts.languages(tables()[1]))
FUNCTIONS = {"index.html": "search", "pick.html": "picker", "compare.html": "comparison"}  # in site.js


def test_both_languages_have_every_text_with_the_same_values() -> None:
    assert ENGLISH.keys() == CHINESE.keys() > SENTENCES.keys()
    differing = [
        name
        for name in ENGLISH
        if len({tuple(sorted(re.findall(r"{\w+}", text))) for text in (ENGLISH[name], CHINESE[name])}) > 1
    ]
    assert differing == []
    assert [name for name in ENGLISH if not CHINESE[name]] == []


def test_no_name_of_a_text_is_used_twice() -> None:
    """One table is made from all tables of texts, so a second text would replace the first."""
    limits = tables()[1].limit_texts
    written = {name for name, pair in yaml.safe_load(texts._TEXTS.read_text()).items() if pair[0]}
    found = [*written, *SENTENCES, *texts.explain.SENTENCES, *WARNINGS, *limits]
    assert sorted(found) == sorted(set(found))


def names_used() -> Iterator[str]:
    for path in sorted(TEMPLATES.glob("*.j2")):
        yield from re.findall(r"\bt\.(\w+)", path.read_text())
    yield from re.findall(r'\bsay\("(\w+)"', (TEMPLATES / "site.js").read_text())


def test_every_text_of_a_template_and_of_the_script_exists() -> None:
    used = set(names_used())
    assert len(used) > 80
    assert used - ENGLISH.keys() == set()


@pytest.mark.parametrize("path", ["index.html", "pick.html", "compare.html", f"tags/{PROVED}.html"])
def test_the_script_has_the_texts_that_it_uses(path: str) -> None:
    """With a missing text, the script would stop."""
    script = (TEMPLATES / "site.js").read_text()
    body = re.search(
        rf"\n  function {FUNCTIONS.get(path, 'copying')}\(\) \{{\n.*?\n  \}}\n", script, re.DOTALL
    )
    assert body
    [found] = [json.loads(text) for text in pages()[path].inside["json"][:1]]
    wanted = set(re.findall(r'\bsay\("(\w+)"', body[0]))
    assert wanted
    assert wanted <= found.keys()


# --- the Chinese pages are in Chinese ---------------------------------------------------------------


def of_scripts(page: Page) -> Iterator[str]:
    """The texts that the script of *page* can show."""
    for document in map(json.loads, page.inside["json"]):
        if "packages" not in document:
            sentences: dict[str, str] = document.get("sentences", document)
            yield from (re.sub(r"{\w+}", "", text) for text in sentences.values())


def marked_on(path: str) -> int:
    """The number of texts on a Chinese page that must be marked as English: titles, messages and the link."""
    found = [image for image in listed().images if path == f"zh/tags/{image.tag}.html"]
    findings = [finding for image in found for run in image.runs for finding in run.findings]
    chinese = texts.languages(tables()[1])[1]
    quoted = sum(chinese.reason(finding).lang == "en" for finding in findings)
    return 1 + quoted + sum(len(image.layers) for image in found)


def test_the_chinese_pages_have_no_english() -> None:
    """Titles of layers and messages of programs are marked as English, and nothing else is."""
    english, seen = {}, 0
    for path, page in pages().items():
        if path.startswith("zh/"):
            shown = [*chinese_texts(page.text), *of_scripts(page)]
            seen += len(shown)
            english |= {text: words for text in shown if (words := english_in(text))}
            assert ShownTexts(page.text).english == marked_on(path), path
            assert '<html lang="zh-Hans">' in page.text
    assert english == {}
    assert seen > 10_000


def test_each_english_text_would_be_found() -> None:
    """The test above would fail for each text that is not translated, except for these texts."""
    unnoticed = {name for name in ENGLISH if not english_in(re.sub(r"{\w+}", "", ENGLISH[name]))}
    without_words = {"gpus-of", "comma", "semicolon", "clause", "colon", "run_title", "other_language"}
    assert unnoticed - without_words == {"wheel", "pick_gpu", "pick_torch", "kind_python"}


@pytest.mark.parametrize("path", ["zh/index.html", f"zh/tags/{PROVED}.html", "zh/pick.html"])
def test_an_english_text_on_a_chinese_page_is_found(path: str) -> None:
    page = files()[path].decode()
    for chinese in ("主题", "镜像"):
        left = page.replace(f">{chinese}<", ">Left out<", 1)
        assert left != page
        assert [text for text in chinese_texts(left) if english_in(text)] == ["Left out"]


# --- warnings of a registry, and messages of reports ------------------------------------------------


def entry(**values: Any) -> CatalogEntry:
    sound = CatalogEntry(
        digest=Digest("sha256:" + "ab" * 32),
        tags=(PROVED,),
        version=PROVED,
        gpus=(),
        cleared=True,
        override="",
        retracted="",
        faults=(),
    )
    return replace(sound, **values)


ENTRIES = {
    "retracted": entry(retracted="4711"),
    "override": entry(cleared=False, override="4711"),
    "only-for": entry(version=f"{PROVED}-sm90"),
    "own-use": entry(version=f"{PROVED}-sm90-ownuse"),
    "tag-moved": entry(names=frozenset()),
    "retraction-ignored": entry(untrusted_retractions=("4711",)),
    "not-cleared": entry(cleared=False),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_each_warning_is_in_both_languages(name: str) -> None:
    english, chinese = texts.languages(tables()[1])
    *_, notice = ENTRIES[name].notices
    assert english.notice(notice).text == ENTRIES[name].warnings[-1] == said(notice, WARNINGS)
    assert not english_in(chinese.notice(notice).text)
    assert chinese.notice(notice).lang == ""


def test_messages_of_programs_are_marked_as_english_on_chinese_pages() -> None:
    """Messages of checks and of invalid statements are not translated."""
    image = next(image for image in listed().images if image.tag == PROVED)
    run = max(image.runs, key=lambda run: len(run.findings))
    failed = replace(run.findings[0], outcome="failed", message="AssertionError: 1 != 2")
    skipped = replace(
        run.findings[1], outcome="skipped", message="host: no GPU device node here (/dev/nvidia0 ...)"
    )
    excluded = replace(run.findings[2], outcome="not-applicable", message="no-compile-on-3.11")
    shown = replace(
        image,
        runs=(replace(run, findings=(failed, skipped, excluded)),),
        published=Published(
            digest=Digest("sha256:" + "ab" * 32), notices=("signature mismatch",), retracted=False
        ),
    )
    found = rendered(replace(listed(), images=(shown,), registry="registry.example/team/pytorch"))
    english, chinese = (found[f"{folder}tags/{PROVED}.html"].decode() for folder in ("", "zh/"))
    assert '失败：<span lang="en">AssertionError: 1 != 2</span>' in chinese
    assert '<p class="warning"><span lang="en">signature mismatch</span></p>' in chinese
    assert '跳过：<span lang="en">host: no GPU device node here (/dev/nvidia0 ...)</span>' in chinese
    assert f'<th scope="row" lang="en">{image.layers[0].title}<' in chinese
    assert "不适用：torch 2.0 的 torch.compile 不支持 Python 3.11" in chinese
    assert "failed: AssertionError: 1 != 2" in english
    assert "not applicable: torch.compile of torch 2.0 does not support Python 3.11" in english
