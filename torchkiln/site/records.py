"""Reads the locks of a folder and the reports of another, for the catalogue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torchkiln.engine.cache_keys import key_of
from torchkiln.engine.predicted_digest import predicted_blobs, predicted_digest
from torchkiln.errors import KilnError, NothingSelected
from torchkiln.gate.cell_state import NO_LOCKS, record_of
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.freshness import outdated
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import aliases_of, tag_of
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, MadeLayer
from torchkiln.model.report import SignedReport
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.plan.load import plan_locked
from torchkiln.site.images import ImageRecord
from torchkiln.smoke.attestation import demand_sound


def read_records(
    locks: LockFolder,
    reports: Sequence[SignedReport],
    say: Callable[[str], None],
    earlier_locks: Mapping[Digest, LockedCell] = NO_LOCKS,
) -> tuple[ImageRecord, ...]:
    """The images of the matrix whose lock is in the folder, in the order of the tags.

    :param earlier_locks: of earlier images, by digest.
    :param say: is called with a line for each lock that is left out, because it is stale or untrusted.
    :raises NothingSelected: no lock is left.
    :raises SmokeFailed: the verdict of a report does not follow from its values.
    """
    by_tag = defaultdict(list)
    for signed in reports:
        demand_sound(signed, signed=False)
        by_tag[signed.report.tag].append(signed)
    found = list(_locked(locks, say))
    if not found:
        raise NothingSelected(f"{locks.path} has no lock to list", hint="run: torchkiln lock --all")
    plans = [plan_locked(locked, locks.matrix, locks.facts) for _, locked in found]
    return tuple(
        ImageRecord(
            resolution=resolution,
            kept=record_of(locked, predicted_digest(plan), by_tag[tag_of(resolution)], earlier_locks),
            layers=layers,
            aliases=aliases_of(resolution, locks.matrix, locks.facts),
        )
        for (resolution, locked), plan, layers in zip(found, plans, _layers(plans), strict=True)
    )


def _layers(plans: Sequence[ImagePlan]) -> Iterator[tuple[tuple[str, Blob | None], ...]]:
    """The titles and blobs of the layers that builds of *plans* produce, as far as the locks record them.

    A layer that one lock records is known for all plans with the same layer: devel has the layers of runtime.
    """
    predicted = [list(zip(plan.layers, predicted_blobs(plan), strict=True)) for plan in plans]
    known = {
        key_of(spec): blob
        for layers in predicted
        for spec, blob in layers
        if blob and isinstance(spec, MadeLayer)
    }
    for layers in predicted:
        yield tuple(
            (spec.title, known.get(key_of(spec)) if not blob and isinstance(spec, MadeLayer) else blob)
            for spec, blob in layers
        )


def _locked(locks: LockFolder, say: Callable[[str], None]) -> Iterator[tuple[Resolution, LockedCell]]:
    cells = all_cells(locks.matrix)
    for path in sorted(locks.path.glob("*/lock.json")):
        tag = path.parent.name
        try:
            locked = load_locked(locks.path, tag)
        except KilnError as error:
            say(f"left out: {error.message}")
            continue
        if _plain(locked.resolution.cell) not in cells:
            say(f"left out: {tag}: not a cell of the matrix")
            continue
        resolution = locks.resolution(locked.resolution.cell)
        if reason := _fault(locked, resolution, locks.bound):
            say(f"left out: {tag}: {reason}")
        else:
            yield resolution, locked


def _plain(cell: Cell) -> Cell:
    """*cell* for all GPUs."""
    return replace(cell, gpus=(), own_use=False)


def _fault(locked: LockedCell, resolution: Resolution, bound: tuple[str, ...]) -> str:
    """Why the lock is left out: unavailable, untrusted or stale; empty: it is listed."""
    if resolution.build is None:
        return resolution.why_unavailable
    return USES if is_untrusted(locked) else outdated(locked, resolution, bound)
