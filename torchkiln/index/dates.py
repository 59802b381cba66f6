"""Lists the files of a project that were uploaded before a lock's date."""

from __future__ import annotations

from datetime import datetime, timezone

from torchkiln.index.listing import ListedFile
from torchkiln.index.pages import Pages
from torchkiln.model.cell import Source

# Measured: two of five responses lack the dates of the newest files; ten in a row lack them once in 10,000.
_READS = 10


def uploaded_before(pages: Pages, name: str, index: Source, as_of: str) -> tuple[tuple[ListedFile, ...], str]:
    """The files of project *name* that were uploaded before the day *as_of* (UTC), and their base URL.

    The page is read again as long as some of its wheels have a date and others do not. A file without a date
    is included, because some indexes have no dates; a lock from such an index keeps its versions.

    :raises Unresolvable: the index does not have the project, or is not configured.
    :raises BuildFailed: the page cannot be read.
    """
    limit = datetime.fromisoformat(as_of).replace(tzinfo=timezone.utc)
    found = pages.listing(name, index)
    dates: dict[str, datetime | None] = {}
    for number in range(_READS):
        for file in found.files:
            dates[file.filename] = dates.get(file.filename) or parse_time(file.uploaded)
        dated = [bool(date) for filename, date in dates.items() if filename.endswith(".whl")]
        if all(dated) or not any(dated) or number == _READS - 1:
            break
        found = pages.listing(name, index, again=True)
    old = tuple(file for file in found.files if not (date := dates[file.filename]) or date < limit)
    return old, found.base


def parse_time(text: str) -> datetime | None:
    """*text* in ISO 8601 as a time; without a time zone it is UTC; None if it is invalid."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
