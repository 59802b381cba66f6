"""Selects the cells that can be locked with the configured indexes, and the wheels from public record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torchkiln.errors import KilnError, NothingSelected, Unresolvable
from torchkiln.index.settings import PYTORCH_ADDRESS, PYTORCH_VARIABLE
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import NO_RECORD, PublicRecord, how_to_lock
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.public_record import on_record, recorded
from torchkiln.matrix.resolve import require_buildable
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source


def lockable(
    folder: LockFolder,
    cells: Iterable[Cell],
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str],
    by_record: bool = False,
    sweeping: bool = False,
) -> tuple[Cell, ...]:
    """The *cells* that can be locked with the indexes that *environ* configures.

    :param by_record: also select cells whose wheels are in the public record.
    :param sweeping: skip the other cells and print a line for each, instead of raising an exception.
    :raises Unresolvable: a cell is unavailable and *sweeping* is false.
    :raises NothingSelected: none of them can be locked.
    """
    found = []
    for cell in cells:
        resolution = folder.resolution(cell)
        try:
            build = require_buildable(resolution)
        except KilnError as error:
            if not sweeping:
                raise
            say(f"skipped: {error.message}")
            continue
        known = by_record and on_record(folder.facts, build, cell.python)
        reachable = known or environ.get(PYTORCH_VARIABLE)
        if sweeping and build.source is Source.PYTORCH and not reachable:
            name = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os})"
            say(f"skipped: {name} is only on PyTorch's own index; {PYTORCH_VARIABLE} is not set")
            continue
        found.append(cell)
    if not found:
        raise NothingSelected(
            "none of the selected cells can be locked", hint="`torchkiln list` shows the status of each cell"
        )
    return tuple(found)


def record_of(
    resolution: Resolution, facts: Facts, *, by_record: bool, pytorch_url: str | None
) -> PublicRecord:
    """The public record of the cell's wheels; with *by_record* the lock uses it instead of the index.

    :raises Unresolvable: the record is incomplete; or neither *by_record* nor *pytorch_url* is set.
    """
    build, python = resolution.build, resolution.cell.python
    if build is None or build.source is not Source.PYTORCH:
        return NO_RECORD
    known = on_record(facts, build, python)
    if by_record and not known:
        raise Unresolvable(
            f"{tag_of(resolution)}: not all of torch, torchvision and torchaudio {build.variant} for Python"
            f" {python} are on public record",
            hint=f"omit --public-record, and set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or a mirror of it",
        )
    if known and not by_record and pytorch_url is None:
        raise Unresolvable(
            f"{tag_of(resolution)}: its torch is only on PyTorch's own index, which is not configured",
            hint=f"set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or a mirror of it, or use the hashes on public"
            f" record: {how_to_lock(resolution.cell, by_record=True)}",
        )
    return PublicRecord(torch=recorded(facts, build, python), known=known if by_record else ())
