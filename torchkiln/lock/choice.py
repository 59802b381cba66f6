"""Which cells can be locked here, and what of a cell is taken by public record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torchkiln.errors import KilnError, NothingSelected, Unresolvable
from torchkiln.index.settings import PYTORCH_VARIABLE
from torchkiln.lock.folder import LockFolder
from torchkiln.lock.lock import how_to_lock
from torchkiln.lock.request import NO_RECORD, PublicRecord
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
    """The *cells* that can be locked at all.

    :param by_record: what is on public record counts.
    :param sweeping: leave the others out, a line each; else they are refused.
    :raises Unresolvable: a cell is unavailable, and this is no sweep.
    :raises NothingSelected: none of them can be locked.
    """
    wanted = []
    for cell in cells:
        resolution = folder.resolution(cell)
        try:
            build = require_buildable(resolution)
        except KilnError as error:
            if not sweeping:
                raise
            say(f"left out: {error.message}")
            continue
        known = by_record and on_record(folder.facts, build, cell.python)
        there = known or environ.get(PYTORCH_VARIABLE)
        if sweeping and build.source is Source.PYTORCH and not there:
            name = f"torch {cell.torch} with CUDA {cell.cuda} ({cell.flavor}, {cell.os})"
            say(f"left out: {name} is only on PyTorch's own index; {PYTORCH_VARIABLE} is not set")
            continue
        wanted.append(cell)
    if not wanted:
        raise NothingSelected(
            "none of the chosen cells can be locked here", hint="`list` shows what each one is"
        )
    return tuple(wanted)


def record_of(
    resolution: Resolution, facts: Facts, *, by_record: bool, pytorch_url: str | None
) -> PublicRecord:
    """What public record tells of the wheels; with *by_record* they are taken from it, unseen.

    :raises Unresolvable: it does not tell of all of them; or it would, was not asked for, and there is no
        *pytorch_url*.
    """
    build, python = resolution.build, resolution.cell.python
    if build is None or build.source is not Source.PYTORCH:
        return NO_RECORD
    known = on_record(facts, build, python)
    if by_record and not known:
        raise Unresolvable(
            f"{tag_of(resolution)}: not all of torch, torchvision and torchaudio {build.variant} for Python"
            f" {python} are on public record",
            hint=f"leave --public-record out, and set {PYTORCH_VARIABLE} to that index's address",
        )
    if known and not by_record and pytorch_url is None:
        raise Unresolvable(
            f"{tag_of(resolution)}: its torch is only on PyTorch's own index, which is not configured",
            hint=f"set {PYTORCH_VARIABLE} to that index's address; or, as the hashes of what it takes"
            f" from there are on public record: {how_to_lock(resolution.cell, by_record=True)}",
        )
    return PublicRecord(torch=recorded(facts, build, python), known=known if by_record else ())
