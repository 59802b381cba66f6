"""A hook of MkDocs: adds the pages in the repository's root, rewrites links for the site, and builds the
menu."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# The names on the site of docs/README.md and of pages outside of docs/.
PAGES: Mapping[str, str] = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "examples/recipes/amp-mistakes.md": "amp-mistakes.md",
    "examples/recipes/amp-mistakes.zh-CN.md": "amp-mistakes.zh-CN.md",
    "examples/recipes/README.zh-CN.md": "recipes.zh-CN.md",
    "deploy/README.zh-CN.md": "deploy.zh-CN.md",
}
# Not a page of MkDocs: `make docs` adds it after the build (docs/publishing.md).
CATALOGUE = "catalogue/index.html"
# The menu: headings and their pages. All other pages are under the last heading.
MENU: Mapping[str, tuple[str, ...]] = {
    "Start": ("index.md", "index.zh-CN.md", "contents.md"),
    "Use": (
        "grid.md",
        "image.md",
        "troubles.md",
        "troubles.zh-CN.md",
        "mirrors.zh-CN.md",
        "deploy.md",
        "deploy.zh-CN.md",
        "gpu-hosts/",
        "recipes.md",
        "recipes.zh-CN.md",
        "amp-mistakes.md",
        "amp-mistakes.zh-CN.md",
    ),
    "Build": (
        "projects.md",
        "systems.md",
        "devel.md",
        "thin.md",
        "project-folder.md",
        "vault.md",
        "cache.md",
        "layer-formats.md",
    ),
    "Test and publish": ("smoke.md", "gate.md", "publishing.md", "sbom.md", "ci.md"),
    "Results": ("status.md", "gpu-proof.md", "bench.md"),
    "Reference": ("reference.md", "CHANGELOG.md"),
    "Development": ("CONTRIBUTING.md", "architecture.md", "SECURITY.md", "attacks.md"),
    "Decisions": ("adr/",),
    "More": ("",),
}
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)"
)
_SOURCE = re.compile(r'(?P<start>\b(?:src|srcset|href)=")(?![a-z]+:|#)(?P<target>[^"#]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and set the menu."""
    from mkdocs.structure.files import File

    for source, name in PAGES.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    config.nav = menu(file.src_uri for file in files.documentation_pages())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    markdown = markdown.replace(f"`{CATALOGUE}`", f'<a href="{CATALOGUE}">{CATALOGUE}</a>')
    return rewritten(markdown, page.file.src_uri, config.extra["repository"])


def menu(pages: Iterable[str]) -> list[dict[str, list[str]]]:
    """The menu of *pages*: each page once, under the first heading that lists it or its folder."""
    left = sorted(pages)
    found = []
    for title, names in MENU.items():
        entries = [page for name in names for page in left if page == name or _below(page, name)]
        left = [page for page in left if page not in entries]
        if entries:
            found.append({title: entries})
    return found


def _below(page: str, name: str) -> bool:
    return (not name or name.endswith("/")) and page.startswith(name)


def rewritten(markdown: str, page: str, repository: str = "") -> str:
    """*markdown* of the site's *page* with links between pages of the site.

    A link to another file of the repository goes to the address *repository*; without an address, only its
    text stays.
    """
    source = next((source for source, name in PAGES.items() if name == page), f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        place = _place(source, found["target"])
        target = page_of(place)
        if target is None:
            return f"[{found['text']}]({repository}/{place})" if repository else found["text"]
        relative = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{found['image']}[{found['text']}]({relative}{found['anchor'] or ''})"

    def attribute(found: re.Match[str]) -> str:
        target = page_of(_place(source, found["target"]))
        return found["start"] + (target or found["target"])

    return _SOURCE.sub(attribute, _LINK.sub(link, markdown)) if source in PAGES else _LINK.sub(link, markdown)


def page_of(place: str) -> str | None:
    """The file of the site for *place*, a path in the repository; None if the site does not have it."""
    if (ROOT / place).is_dir():
        place = posixpath.join(place, "README.md")
    if place in PAGES:
        return PAGES[place]
    if place.startswith("docs/") and (ROOT / place).is_file():
        return place.removeprefix("docs/")
    return None


def _place(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
