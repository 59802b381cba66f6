"""The documentation site: its menu has all pages, links are rewritten, and it is built if MkDocs is here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.programs import run_program
from tools import docs_site
from torchkiln.util.places import ROOT

DOCS = ROOT / "docs"
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
PAGES = sorted(
    {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path != DOCS / "README.md"}
    | {page for source, page in docs_site.PAGES.items() if (ROOT / source).is_file()}
)


def source_of(page: str) -> Path:
    """The repository's file from which *page* of the site is made."""
    return ROOT / next((source for source, name in docs_site.PAGES.items() if name == page), f"docs/{page}")


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_to_files_of_the_site(page: str) -> None:
    text = docs_site.rewritten(source_of(page).read_text(), page)
    targets = [found["target"] for found in docs_site._LINK.finditer(text)]
    missing = [
        target
        for target in targets
        if (place := os.path.normpath(os.path.join(os.path.dirname(page), target))) not in PAGES
        and not (DOCS / place).is_file()
    ]
    assert missing == []


def test_each_page_is_once_in_the_menu() -> None:
    menu = docs_site.menu(PAGES)
    assert sorted(page for heading in menu for pages in heading.values() for page in pages) == PAGES


def test_an_unlisted_page_is_at_the_end_of_the_menu() -> None:
    assert docs_site.menu(["new.md", "image.md"]) == [{"Use": ["image.md"]}, {"More": ["new.md"]}]


def test_pages_of_the_menu_exist() -> None:
    """Translations and the index page may be missing."""
    names = {name for names in docs_site.MENU.values() for name in names}
    assert [
        name
        for name in sorted(names - set(docs_site.PAGES.values()))
        if not (name in PAGES or (DOCS / name).is_dir())
    ] == []


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/image.md#ssh)", "[a](image.md#ssh)"),
        ("index.md", "![a](docs/ci.svg)", "![a](ci.svg)"),
        ("index.md", '<img src="docs/ci.svg">', '<img src="ci.svg">'),
        ("adr/0001-two-engines.md", "[a](../../SECURITY.md)", "[a](../SECURITY.md)"),
        ("gate.md", "[a](../README.md)", "[a](index.md)"),
        ("gate.md", "[a](adr/)", "[a](adr/README.md)"),
        ("gate.md", "[the matrix](../matrix.yaml)", "the matrix"),
        ("gate.md", "[a](#here) [b](mailto:a@example.com)", "[a](#here) [b](mailto:a@example.com)"),
    ],
)
def test_rewritten_links(page: str, text: str, expected: str) -> None:
    assert docs_site.rewritten(text, page) == expected


def test_with_an_address_a_file_of_the_repository_is_linked() -> None:
    address = "https://git.example/team/torchkiln/blob/1a2b"
    assert docs_site.rewritten("[m](../matrix.yaml)", "gate.md", address) == f"[m]({address}/matrix.yaml)"


@pytest.mark.skipif(not MKDOCS.exists(), reason="MkDocs is not installed: make docs")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [MKDOCS, "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = run_program(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    loads = re.compile(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="?(?:https?:)?//[^"> ]+')
    outside = {
        found
        for page in (tmp_path / "site").rglob("*.html")
        for found in loads.findall(page.read_text())
        if 'rel="canonical"' not in found
    }

    assert (done.returncode, done.stderr) == (0, "")
    assert outside == set()
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
