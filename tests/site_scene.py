"""The catalogue of this repository's locks and reports, and a parser of its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser

from tools.kept import IMAGES, PROOFS, earlier_locks, kept_in, on_gpus, tables
from torchkiln.gate.cell_state import record_of
from torchkiln.gate.gpu_stack import built_from
from torchkiln.locks.folder import LockFolder
from torchkiln.site.catalogue import Catalogue
from torchkiln.site.images import ImageRecord, catalogue, read_records
from torchkiln.site.pages import render
from torchkiln.smoke.suite import load_suite

HOSTILE = (
    "</script ><script >window.owned=1</script ></script><script>window.owned=1</script>"
    "<img src=x onerror=window.owned=1>\"'{{7*7}}"
)


@cache
def records() -> tuple[ImageRecord, ...]:
    """The records of all locks."""
    left_out: list[str] = []
    reports = [one.signed for one in kept_in(PROOFS)]
    found = read_records(LockFolder(IMAGES, *tables()), reports, left_out.append, earlier_locks(PROOFS))
    assert left_out == []
    return found


@cache
def listed() -> Catalogue:
    return catalogue(records(), *tables(), load_suite())


@cache
def at_gpu_runs() -> Catalogue:
    """The catalogue as it was when the checks ran on GPUs, in the images of the locks of that time."""
    return catalogue(tuple(map(_at_gpu_runs, records())), *tables(), load_suite())


def _at_gpu_runs(record: ImageRecord) -> ImageRecord:
    if not (found := on_gpus(record.kept.reports)):
        return record
    image = max(found, key=lambda signed: signed.report.when or "").report.image
    of_image = (signed.report.findings for signed in found if signed.report.image == image)
    ((lock, _),) = {built for findings in of_image for built in built_from(findings)}
    locked = earlier_locks(PROOFS).get(lock, record.kept.locked)
    return replace(record, kept=record_of(locked, image, record.kept.reports))


@cache
def files() -> dict[str, bytes]:
    """The files of the site, by path."""
    return rendered(listed())


def rendered(shown: Catalogue) -> dict[str, bytes]:
    return render(shown, tables()[1], dict(file for one in kept_in(PROOFS) for file in one.files))


@dataclass
class Page(HTMLParser):
    """The links, elements and attributes of a page."""

    text: str
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    policy: str = ""
    inside: dict[str, list[str]] = field(default_factory=lambda: {"script": [], "style": [], "json": []})
    _open: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: Mapping[str, str] = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += given
        if "href" in given:
            self.links.append(given["href"])
        if "id" in given:
            self.ids.append(given["id"])
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self._open = "json" if given.get("type") == "application/json" and tag == "script" else tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open].append(data)


@cache
def pages() -> dict[str, Page]:
    """The pages of the site, by path."""
    return {path: Page(data.decode()) for path, data in files().items() if path.endswith(".html")}
