"""Project pages → the versions that are too new for a lock's date."""

from __future__ import annotations

from datetime import datetime, timezone

from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage

from torchkiln.index.pages import Pages
from torchkiln.index.read_page import Page, links_on, packages_of
from torchkiln.nouns import Source

# Seen: pages without the dates of the newest files in two of five answers. Ten leave one in 10,000.
_LOOKS = 10


def too_new(pages: Pages, name: str, index: Source, as_of: str) -> tuple[str, ...]:
    """The versions of project *name* that were uploaded on the day *as_of* (UTC) or later, oldest first.

    The page is read again while it dates some files and others not. A file that never gets a date counts
    as old: an index without dates can then be used, and a lock from it holds by its kept versions.

    :raises Unresolvable: the project or its index is not there.
    :raises BuildFailed: the index gives no lasting answer.
    """
    dates: dict[str, datetime | None] = {}
    versions: dict[str, str] = {}
    for _ in range(_LOOKS):
        for file, date in _dated(pages.page(name, index, fresh=True), name):
            if file.version and file.package_type == "wheel" and _is_version(file.version):
                versions[file.filename] = file.version
                dates[file.filename] = dates.get(file.filename) or date
        if all(dates.values()) or not any(dates.values()):
            break
    limit = datetime.fromisoformat(as_of).replace(tzinfo=timezone.utc)
    first: dict[str, datetime] = {}
    for filename, date in dates.items():
        version, moment = versions[filename], date or datetime.min.replace(tzinfo=timezone.utc)
        first[version] = min(first.get(version, moment), moment)
    return tuple(sorted((version for version, moment in first.items() if moment >= limit), key=Version))


def _dated(page: Page, name: str) -> list[tuple[DistributionPackage, datetime | None]]:
    """Every file of *page* with its upload date, in JSON by its own field, in HTML by uv's attribute."""
    if page.json:
        return [(file, _aware(file.upload_time)) for file in packages_of(page)]
    return [
        (DistributionPackage.from_link(link, name), _moment(link.get_str_attrib("data-upload-time")))
        for link in links_on(page)
    ]


def _is_version(text: str) -> bool:
    try:
        return bool(Version(text))
    except InvalidVersion:  # a file of that name is nothing that uv could choose
        return False


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return _aware(moment)


def _aware(moment: datetime | None) -> datetime | None:
    """A time without a zone is meant in UTC."""
    return moment.replace(tzinfo=timezone.utc) if moment and not moment.tzinfo else moment
