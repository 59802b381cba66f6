"""Prints tables and lists on stdout or stderr, for people and for `awk`.

On a terminal only text is wrapped, and only at spaces: a number, a tag or a name stays whole. Columns that do
not fit beside the others continue on a further line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

import click

from torchkiln.cli.shared import terminal
from torchkiln.errors import printable

_GAP = "  "
_INDENT = 4  # spaces before the further lines of a row
_LEAST = 24  # minimum width of a column of text; if it does not fit, it goes to a further line
_GLUE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]i?)?B\b)")  # "821.2 MB"


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
    right: Collection[int] = (),
    text: Collection[int] = (),
    err: bool = False,
) -> None:
    """Print a table that fits the terminal's width.

    If the output is not a terminal, print plain columns that `awk` and `cut` can read.

    :param header: the names of the columns.
    :param styles: the text of a cell with its style: {"passed": "green"}.
    :param right: the numbers of the columns that are aligned to the right.
    :param text: the numbers of the columns whose text may be wrapped.
    :param err: print on stderr.
    """
    painted = {**dict.fromkeys(header, "bold"), **(styles or {})}
    width = terminal.columns(err=err)
    for line in laid_out(header, rows, width, styles=painted, right=right, text=text):
        click.echo(line, err=err)  # with colours; `laid_out` has escaped the cells


def laid_out(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    styles: Mapping[str, str] | None = None,
    right: Collection[int] = (),
    text: Collection[int] = (),
) -> list[str]:
    """The lines of a table in *width*; None: plain columns. The other parameters are those of `table`."""
    lines = [header, *([_line(cell) for cell in row] for row in rows)]
    if width is None:
        return columns(lines, right)
    bands = _bands(lines, width, text)
    return [shown for line in lines for shown in _row(line, bands, right, styles or {})]


def _line(text: str) -> str:
    """*text* on one line: a cell cannot look like further rows."""
    return printable(text).replace("\n", "\\n").replace("\t", " ")


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """*rows* as lines whose columns are two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def beside(head: str, text: str, width: int | None) -> str:
    """*head* and *text*. Text beyond *width* continues below its first word; None: all on one line."""
    if width is None or len(head) + len(text) <= width:
        return head + text
    room = width - len(head)
    if room >= max(_LEAST, _longest(text)):
        first, *others = _wrapped(text, room)
        return "\n".join((head + first, *(" " * len(head) + line for line in others)))
    lines = [" " * _INDENT + line for line in _wrapped(text, width - _INDENT)]
    return "\n".join(([head.rstrip()] if head.strip() else []) + lines)


def paragraph(line: str, *, err: bool = False) -> str:
    """*line* as it is printed on a terminal: further lines are indented by four more characters."""
    width = terminal.columns(err=err)
    if width is None or len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip()) + _INDENT
    return "\n".join(_wrapped(line, width, indent))


def shortened(text: str, most: int) -> str:
    """*text*, or its beginning up to a space in at most *most* characters, with an ellipsis."""
    if len(text) <= most:
        return text
    start = text[: most - 1]
    return (start.rpartition(" ")[0].rstrip(" ,;:") or start) + "…"


_Band = list[tuple[int, int]]  # number and width of each column of one line


def _bands(lines: Sequence[Sequence[str]], width: int, text: Collection[int]) -> list[_Band]:
    """The columns of each line of a row, in their order: each line has as many as fit into *width*."""
    natural = [max(map(len, column)) for column in zip(*lines, strict=True)]
    least = [
        max(min(_LEAST, natural[number]), *(_longest(line[number]) for line in lines))
        if number in text
        else natural[number]
        for number in range(len(natural))
    ]
    bands: list[_Band] = [[]]
    left = width
    for number, needed in enumerate(least):
        if bands[-1] and needed > left:
            bands.append([])
            left = width - _INDENT
        bands[-1].append((number, needed))
        left -= needed + len(_GAP)
    return [_widened(band, natural, width - _INDENT * bool(at)) for at, band in enumerate(bands)]


def _widened(band: _Band, natural: Sequence[int], width: int) -> _Band:
    """*band* with wider columns where text is longer, as far as the line has free space."""
    free = width - sum(needed for _, needed in band) - len(_GAP) * (len(band) - 1)
    wide = []
    for number, needed in band:
        more = max(min(free, natural[number] - needed), 0)
        free -= more
        wide.append((number, needed + more))
    return wide


def _row(
    cells: Sequence[str], bands: Sequence[_Band], right: Collection[int], styles: Mapping[str, str]
) -> list[str]:
    shown = []
    for at, band in enumerate(bands):
        parts = [_wrapped(cells[number], width) for number, width in band]
        for pieces in zip_longest(*parts, fillvalue=""):
            line = " " * _INDENT * bool(at)
            for (number, width), piece in zip(band, pieces, strict=True):
                space, painted = " " * (width - len(piece)), _painted(piece, styles.get(cells[number], ""))
                line += (space + painted if number in right else painted + space) + _GAP
            shown.append(line.rstrip())
    return shown


def _painted(text: str, style: str) -> str:
    if not (text and style):
        return text
    return click.style(text, bold=True) if style == "bold" else click.style(text, fg=style)


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """*text* in lines of *width*, broken at spaces only, and not between a number and its unit."""
    lines = textwrap.wrap(
        _UNIT.sub(_GLUE, text),
        max(width, 1),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines] or [""]


def _longest(text: str) -> int:
    return max(map(len, _UNIT.sub(_GLUE, text).split(" ")))
