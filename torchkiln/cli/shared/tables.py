"""Prints tables on stdout or stderr, for people and for `awk`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

import click


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
    right: Collection[int] = (),
    err: bool = False,
) -> None:
    """Print by rich on a terminal; elsewhere as plain columns that `awk` and `cut` can read.

    :param styles: by the whole text of a cell, "green".
    :param right: the numbers of the columns that are aligned to the right.
    :param err: print on stderr.
    """
    if (sys.stderr if err else sys.stdout).isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=SIMPLE_HEAD, pad_edge=False)
        for number, name in enumerate(header):
            shown.add_column(name, justify="right" if number in right else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(text, style=(styles or {}).get(text, "")) for text in row))
        Console(stderr=err).print(shown)
        return
    click.echo("\n".join(columns((header, *rows), right)), err=err)


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """*rows* as lines whose columns are two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.rjust(width) if number in right else text.ljust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
