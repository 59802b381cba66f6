"""Pages that are made in parts: tables, and what stands between marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_PART = re.compile(r"(<!-- generated: (?P<what>.+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown has it; a bar in a cell stays a bar."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def filled(text: str, make: Callable[[str], str]) -> str:
    """*text* with every part between `<!-- generated: WHAT -->` and `<!-- end -->` made anew by WHAT."""
    return _PART.sub(lambda part: f"{part[1]}{make(part['what'])}{part[4]}", text)
