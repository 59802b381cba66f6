"""Resolution, what is kept of its cell -> State: what there is of one cell of the grid, from records.

A cell is built when a smoke report of its image is kept: only a run inside an image writes one, and it is
bound to that image's digest. Another lock, or another file of `rootfs/`, gives another digest, of which
nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from torchkiln.errors import GateRefused, Unresolvable
from torchkiln.gate.gate import clear, judge
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


class State(str, Enum):
    """From what nobody doubts to what cannot be had."""

    PROVED = "built and proved"  # reports of runs on GPUs clear the image that the lock gives
    BUILT = "built"  # that image ran: a report of it is kept
    LOCKED = "locked"  # of that image nothing is kept
    RECORDED = "locked by public record"  # to be built elsewhere: nobody here has seen its torch
    LOCKABLE = "lockable"  # nobody locked it yet
    ELSEWHERE = "lockable elsewhere"  # where more can be reached than the default index and archive
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What the repository holds of a cell that has a lock."""

    locked: LockedCell
    image: Digest | None  # that the lock gives today; None: only a build can tell
    reports: tuple[SignedReport, ...] = ()  # of any image of its tag

    @property
    def present(self) -> tuple[SignedReport, ...]:
        """The reports of the image that the lock gives today."""
        return tuple(one for one in self.reports if self.image and one.report.image == self.image)


def state(answer: Resolution, kept: Kept | None, policy: Policy, suite: Suite) -> State:
    """What there is of the cell of *answer*; *kept* is None where it has no lock.

    A lock that uses an untrusted source counts as none.
    """
    if why_unavailable(answer):
        return State.UNAVAILABLE
    if kept is None or is_untrusted(kept.locked):
        return State.ELSEWHERE if needs(answer) else State.LOCKABLE
    if not kept.present or kept.image is None:
        return State.RECORDED if kept.locked.by_record else State.LOCKED
    on_gpus = [one for one in kept.present if saw_gpus(one)]
    proved = cleared(on_gpus, policy, kept.locked, suite, kept.image)
    return State.PROVED if proved else State.BUILT


def why_unavailable(answer: Resolution) -> str:
    """A sentence; empty: it can be had."""
    try:
        require_buildable(answer)
    except Unresolvable as error:
        return error.message
    return ""


def saw_gpus(one: SignedReport) -> bool:
    """Whether it tells of a run on GPUs."""
    return bool(hosts.gpus(json.loads(one.report.host)))


def cleared(
    reports: Sequence[SignedReport], policy: Policy, locked: LockedCell, suite: Suite, image: Digest
) -> bool:
    """Whether the gate lets *image* through by *reports*."""
    try:
        clear(judge(reports, policy, locked, suite, image=image))
    except GateRefused:
        return False
    return True
