"""Finds the cell that a tag or an alias names."""

from __future__ import annotations

import difflib
from dataclasses import replace

from torchkiln.errors import ConfigError
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import ParsedTag, aliases_of, names_of, parse_name, tag_of
from torchkiln.model.cell import Cell


def cell_named(name: str, matrix: Matrix, facts: Facts) -> Cell:
    """The cell whose image has *name* as its tag or as an alias.

    :raises ConfigError: there is none.
    """
    found = find_cell(name, matrix, facts)
    if found is None:
        resolutions = [resolve(cell, matrix, facts) for cell in all_cells(matrix)]
        tags = [tag_of(resolution) for resolution in resolutions if resolution.build]
        near = difflib.get_close_matches(name[:200], tags, 3)
        raise ConfigError(
            f"{name}: no cell of the matrix has this tag or alias",
            hint=f"nearest: {', '.join(near)}" if near else "`torchkiln list --all` shows the tags",
        )
    return found


def find_cell(name: str, matrix: Matrix, facts: Facts) -> Cell | None:
    """Like `cell_named`, but None if there is no such cell."""
    parsed = parse_name(name)
    if parsed is not None:
        return _by_tag(name, parsed, matrix, facts)
    for cell in all_cells(matrix):
        named = ParsedTag(torch=cell.torch, cuda=cell.cuda, flavor=cell.flavor, os=cell.os)
        # The first test is fast, and false for nearly every cell.
        if name in names_of(named, matrix) and name in aliases_of(
            resolve(cell, matrix, facts), matrix, facts
        ):
            return cell
    return None


def _by_tag(tag: str, parsed: ParsedTag, matrix: Matrix, facts: Facts) -> Cell | None:
    named = (parsed.torch, parsed.cuda, parsed.flavor, parsed.os)
    for plain in all_cells(matrix):
        if (plain.torch, plain.cuda, plain.flavor, plain.os) == named:
            cell = replace(plain, gpus=parsed.gpus, own_use=parsed.own_use)
            resolution = resolve(cell, matrix, facts)
            return cell if resolution.build and tag_of(resolution) == tag else None
    return None
