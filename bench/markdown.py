"""Write Markdown tables, and replace the generated parts of pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_PART = re.compile(r"(<!-- generated: (?P<what>.+?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def filled(text: str, make: Callable[[str], str]) -> str:
    """*text* with every part between `<!-- generated: WHAT -->` and `<!-- end -->` replaced by make(WHAT)."""
    return _PART.sub(lambda part: f"{part[1]}{make(part['what'])}{part[4]}", text)
