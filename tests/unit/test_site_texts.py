"""The texts of the catalogue: both languages have all of them; the Chinese pages contain no English."""

from __future__ import annotations

import ast
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
from torchkiln.site import texts
from torchkiln.site.catalogue import Published
from torchkiln.site.pages import TEMPLATES
from torchkiln.site.texts import in_chinese
from torchkiln.util.places import ROOT
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
    written = {name for name, pair in yaml.safe_load(texts._FILE.read_text()).items() if pair[0]}
    found = [*written, *SENTENCES, *texts.sentences.SENTENCES, *WARNINGS, *limits]
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
        if "packages" in document:
            yield from (title for title, *_ in document["layers"])
        else:
            sentences: dict[str, str] = document.get("sentences", document)
            yield from (re.sub(r"{\w+}", "", text) for text in sentences.values())


def test_the_chinese_pages_have_no_english() -> None:
    english, seen = {}, 0
    for path, page in pages().items():
        if path.startswith("zh/"):
            shown = [*chinese_texts(page.text), *of_scripts(page)]
            seen += len(shown)
            english |= {text: words for text in shown if (words := english_in(text))}
            assert ShownTexts(page.text).english == 1, path  # the link to the English page
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


# --- messages of smoke_tests and titles of layers --------------------------------------------------

#: The values that are inserted into the messages of smoke_tests; all other values are "7".
VALUES = {"hidden": "", "state": "cannot be written", "remedy": "a newer torch, or a build for a newer CUDA"}


def messages(file: str, functions: set[str]) -> Iterator[str]:
    """The texts that *functions* in a file of smoke_tests return, with inserted values."""
    for node in ast.walk(ast.parse((ROOT / "smoke_tests" / file).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and isinstance(inner.value, ast.JoinedStr | ast.Constant):
                    yield from _texts(inner.value)


def _texts(value: ast.JoinedStr | ast.Constant) -> Iterator[str]:
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    text = "".join(
        str(part.value) if isinstance(part, ast.Constant) else VALUES.get(ast.unparse(part.value), "7")
        for part in parts
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )
    if text != "None":
        yield text.removesuffix("7") if text == "host: 7" else text


def test_every_reason_why_a_host_cannot_run_a_check_is_translated() -> None:
    from smoke_tests.gpus import _INIT

    found = [*messages("host.py", {"fault"})]
    found += messages(
        "gpus.py",
        {
            *("_no_driver", "_no_gpu", "_too_old", "_too_few", "_no_kernel", "_not_kept"),
            *("_too_full", "_no_transport"),
        },
    )
    found += [text.format("/usr/lib/libcuda.so.1") for text in _INIT.values()]
    found += ["the driver does not start (CUDA error 205)", "no kernel for 7 in this build; use 7 (it has 7)"]
    assert len(found) > 22
    chinese = {text: in_chinese(text, "messages") for text in found}
    assert [text for text, translated in chinese.items() if translated is None] == []
    assert [text for text in chinese.values() if english_in(text or "")] == []


@pytest.mark.parametrize(
    ("title", "chinese"),
    [
        ("debian12 base (1 package)", "debian12 基础层（1 个软件包）"),
        ("dependencies (98 wheels) for 9.0", "依赖（98 个 wheel）（用于 9.0）"),
        ("packages: a 1, b 2", "软件包：a 1, b 2"),
        ("torch 2.7.1", None),
        ("x" * 3000 + " base (1 package)", None),
    ],
)
def test_titles_of_layers(title: str, chinese: str | None) -> None:
    assert in_chinese(title, "layers") == chinese


def test_the_patterns_stay_fast() -> None:
    """A report's messages are untrusted: with at most two wildcards, the time is at most quadratic."""
    for table in texts._phrases().values():
        assert max(phrase.english.pattern.count(".+?") for phrase in table) <= 2


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
    """Messages of failed checks and of invalid statements are not translated."""
    image = next(image for image in listed().images if image.tag == PROVED)
    run = image.runs[0]
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
    assert "跳过：主机：这里没有 GPU 的设备节点（/dev/nvidia0 …）" in chinese
    assert "不适用：torch 2.0 的 torch.compile 不支持 Python 3.11" in chinese
    assert "failed: AssertionError: 1 != 2" in english
    assert "not applicable: torch.compile of torch 2.0 does not support Python 3.11" in english
