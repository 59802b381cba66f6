"""Project pages → the files of a project that are old enough for a lock's date."""

from __future__ import annotations

from datetime import datetime, timezone

from torchkiln.index.listing import Listed
from torchkiln.index.pages import Pages
from torchkiln.model.cell import Source

# Seen: pages without the dates of the newest files in two of five answers. Ten leave one in 10,000.
_LOOKS = 10


def old_enough(pages: Pages, name: str, index: Source, as_of: str) -> tuple[tuple[Listed, ...], str]:
    """The files of project *name* that were not uploaded on the day *as_of* (UTC) or later, and their base.

    The page is read again while it dates some wheels and others not. A file that never gets a date counts
    as old: an index without dates can then be used, and a lock from it holds by its kept versions.

    :return: the files, and the address to which their links are relative.
    :raises Unresolvable: the project or its index is not there.
    :raises BuildFailed: the index gives no lasting answer.
    """
    limit = datetime.fromisoformat(as_of).replace(tzinfo=timezone.utc)
    found = pages.listing(name, index)
    dates: dict[str, datetime | None] = {}
    for look in range(_LOOKS):
        for file in found.files:
            dates[file.filename] = dates.get(file.filename) or moment(file.uploaded)
        told = [bool(date) for filename, date in dates.items() if filename.endswith(".whl")]
        if all(told) or not any(told) or look == _LOOKS - 1:
            break
        found = pages.listing(name, index, again=True)
    old = tuple(file for file in found.files if not (date := dates[file.filename]) or date < limit)
    return old, found.base


def moment(text: str) -> datetime | None:
    """The time that *text* tells, by ISO 8601; one without a zone is meant in UTC."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
