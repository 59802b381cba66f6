"""The state of a cell in the grid, from its resolution, lock and committed smoke reports.

A cell is built if there is a smoke report of its image, because only a run inside an image writes a report.
The report names the image's digest. If the lock or `rootfs/` changes, the digest changes, and older reports
do not apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from torchkiln.errors import GateRefused, Unresolvable
from torchkiln.gate.gate import clear, judge
from torchkiln.gate.gpu_stack import EarlierImage, earlier_images
from torchkiln.matrix.explain import needs
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.resolve import require_buildable
from torchkiln.model.cell import Resolution
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.model.untrusted import is_untrusted
from torchkiln.smoke import hosts
from torchkiln.smoke.suite import Suite

NO_LOCKS: Mapping[Digest, LockedCell] = MappingProxyType({})


class State(str, Enum):
    """The states, from the best to the worst."""

    PROVED = "built and proved"  # reports clear the image of the lock, by GPU runs in it or in its GPU stack
    BUILT = "built"  # there is a report of the image of the lock
    LOCKED = "locked"  # there is a lock, but no report of its image
    RECORDED = "locked by public record"  # the same, but torch is only in the public record, not on an index
    LOCKABLE = "lockable"  # no lock is committed
    ELSEWHERE = "lockable elsewhere"  # the same, but the default index and archive are not enough
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRecord:
    """The committed lock of a cell, and its reports."""

    locked: LockedCell
    image: Digest | None  # the digest that the lock predicts; None: it is known only after a build
    reports: tuple[SignedReport, ...] = ()  # of any image of its tag
    earlier: tuple[EarlierImage, ...] = ()  # with the same GPU stack

    @property
    def present(self) -> tuple[SignedReport, ...]:
        return tuple(signed for signed in self.reports if self.image and signed.report.image == self.image)


def record_of(
    locked: LockedCell,
    image: Digest | None,
    reports: Sequence[SignedReport],
    earlier_locks: Mapping[Digest, LockedCell] = NO_LOCKS,
) -> CellRecord:
    """The record of a cell; *earlier_locks* has locks of earlier images, by digest."""
    others = (signed for signed in reports if signed.report.image != image)
    earlier = tuple(earlier_images(others, locked, earlier_locks.get))
    return CellRecord(locked=locked, image=image, reports=tuple(reports), earlier=earlier)


def state(answer: Resolution, record: CellRecord | None, policy: Policy, suite: Suite) -> State:
    """The state of the cell whose resolution is *answer*; *record* is None if the cell has no lock.

    A lock that uses an untrusted source is ignored.
    """
    if why_unavailable(answer):
        return State.UNAVAILABLE
    if record is None or is_untrusted(record.locked):
        return State.ELSEWHERE if needs(answer) else State.LOCKABLE
    if not record.present or record.image is None:
        return State.RECORDED if record.locked.by_record else State.LOCKED
    on_gpus = tuple(filter(saw_gpus, record.present))
    # All reports count, too: a bundle on a GPU host cannot run `device-code`, but the build host can.
    choices = (on_gpus, record.present) if on_gpus or record.earlier else ()
    proved = any(
        cleared(choice, policy, record.locked, suite, record.image, record.earlier) for choice in choices
    )
    return State.PROVED if proved else State.BUILT


def why_unavailable(answer: Resolution) -> str:
    """Why the cell whose resolution is *answer* is unavailable; empty if it is available."""
    try:
        require_buildable(answer)
    except Unresolvable as error:
        return error.message
    return ""


def saw_gpus(signed_report: SignedReport) -> bool:
    """Whether the host in the report has GPUs."""
    return bool(hosts.gpus(json.loads(signed_report.report.host)))


def cleared(
    reports: Sequence[SignedReport],
    policy: Policy,
    locked: LockedCell,
    suite: Suite,
    image: Digest,
    earlier: Sequence[EarlierImage] = (),
) -> bool:
    """Whether the gate clears *image* with *reports*, and those of *earlier* images with its GPU stack."""
    try:
        clear(judge(reports, policy, locked, suite, image=image, earlier=earlier))
    except GateRefused:
        return False
    return True
