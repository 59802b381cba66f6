"""Rows → a table on stdout or stderr, for people and for `awk`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
    err: bool = False,
) -> None:
    """Rich on a terminal; elsewhere plain columns, two spaces apart, that `awk` and `cut` can read.

    :param styles: of cells by their whole text, "green".
    :param err: to stderr.
    """
    if (sys.stderr if err else sys.stdout).isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(*header, box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            shown.add_row(*(Text(text, style=(styles or {}).get(text, "")) for text in row))
        Console(stderr=err).print(shown)
        return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line, err=err)
