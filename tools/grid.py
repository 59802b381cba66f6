"""Resolutions, locks and docs/proofs → the grid in README.md: of each cell what it is and what was proved."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.markdown import table
from tools.kept import IMAGES, PROOFS, latest_earlier, present, proofs, same_wheels, short
from torchkiln import facts as facts_of
from torchkiln import hosts
from torchkiln import matrix as matrix_of
from torchkiln.errors import GateRefused
from torchkiln.gate import clear, judge
from torchkiln.lock import load_locked
from torchkiln.nouns import Digest, LockedCell, Resolution, Source, Status, Witness
from torchkiln.places import ROOT
from torchkiln.policy import Policy
from torchkiln.resolve import resolve
from torchkiln.select import Selection, select
from torchkiln.suite import Suite, load_suite
from torchkiln.tags import tag_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the reports of one image tell, at least one."""

    reports: Sequence[Witness]
    proved: bool  # they satisfy the gate, or did: see `_was_cleared`

    @property
    def passed(self) -> bool:
        """Whether any report holds nothing but what passed."""
        return any(one.report.verdict == "pass" for one in self.reports)

    def now(self) -> str:
        """For the image that the lock gives today."""
        if failed := self._failed():
            return f"built; {failed} failed on {self._where()}"
        return f"{'proved' if self.proved else 'built; not all checks ran, but passed,'} on {self._where()}"

    def earlier(self, image: str) -> str:
        """For another, which is called *image*: never that the present one was proved."""
        if failed := self._failed():
            return f"in {image} {failed} failed on {self._where()}"
        if self.proved:
            return f"{image} was proved on {self._where()}"
        return f"in {image} not all of today's checks ran, but passed, on {self._where()}"

    def _failed(self) -> str:
        return ", ".join(f"`{name}`" for name in _failed(self._best()))

    def _best(self) -> Witness:
        """The report that tells of most checks, the youngest of these; one that failed, if any did."""
        failed = [one for one in self.reports if _failed(one)]
        return max(failed or self.reports, key=lambda one: (len(one.report.findings), one.report.when or ""))

    def _where(self) -> str:
        """GPUs, day, report and image."""
        best = self._best()
        gpus, day = hosts.kinds(json.loads(best.report.host)), (best.report.when or "").partition("T")[0]
        name = best.name.removesuffix(".dsse.json").removesuffix(".json")
        return f"{gpus}, [{day}](docs/proofs/{name}.json), `{short(best.report)}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """A cell of the grid. *digest*: the image that its committed lock gives; None: there is no lock."""

    answer: Resolution
    digest: Digest | None = None
    now: Seen | None = None  # of that digest
    earlier: Seen | None = None  # of the image before it
    same_wheels: bool = False  # that one had the wheels of the lock

    def text(self) -> str:
        """For a table; bold where a lock is committed."""
        build = self.answer.build
        if build is None:
            return "unavailable"
        kind = "native" if self.answer.status is Status.NATIVE else f"minor-compat, built with {build.cuda}"
        if self.digest is None:
            return f"{kind}, lockable elsewhere{' ¹' if build.source is Source.PYTORCH else ''}"
        return f"**{kind}**<br>{self._seen()}"

    def told_of_earlier(self) -> Seen | None:
        """What is worth telling of an earlier image: nothing once a report of the present one passed."""
        return None if self.now and self.now.passed else self.earlier

    def _seen(self) -> str:
        told = self.now.now() if self.now else "built"
        if (earlier := self.told_of_earlier()) is None:
            return told
        image = "an earlier image of this lock's wheels" if self.same_wheels else "an earlier image"
        return f"{told}; {earlier.earlier(image)}"


def grid() -> str:
    """The runtime cells of the default OS, a row a torch."""
    facts = facts_of.load()
    matrix = matrix_of.read(ROOT / "matrix.yaml", facts)
    known, suite = proofs(PROOFS), load_suite(ROOT / "smoke_tests")
    squares: dict[tuple[str, str], Square] = {}
    for cell in select(Selection(), matrix):
        answer = resolve(cell, matrix, facts)
        squares[cell.torch, cell.cuda] = _square(answer, known, matrix.policy, suite)
    head = ["torch", *(f"CUDA {cuda}<br>{_drivers(cuda, squares.values())}" for cuda in matrix.cuda)]
    rows = [
        [f"**{torch}**", *(squares[torch, cuda].text() for cuda in matrix.cuda)]
        for torch in reversed(matrix.torch)
    ]
    return table(head, rows) + f"\n{_counts(list(squares.values()))}\n"


def _square(answer: Resolution, known: Sequence[Witness], policy: Policy, suite: Suite) -> Square:
    tag = tag_of(answer) if answer.build else ""
    digest = present(tag) if tag else None
    if digest is None:
        return Square(answer=answer)
    locked = load_locked(IMAGES, tag)
    mine = [one for one in known if one.report.tag == tag]
    now = [one for one in mine if one.report.image == digest]
    before = latest_earlier(mine, digest)
    return Square(
        answer=answer,
        digest=digest,
        now=Seen(reports=now, proved=_cleared(now, policy, locked, suite, digest)) if now else None,
        earlier=Seen(reports=before, proved=_was_cleared(before, policy, locked, suite)) if before else None,
        same_wheels=bool(before) and all(same_wheels(one.report, locked) for one in before),
    )


def _cleared(
    reports: Sequence[Witness], policy: Policy, locked: LockedCell, suite: Suite, digest: Digest
) -> bool:
    try:
        clear(judge(reports, policy, locked, suite, image=digest))
    except GateRefused:
        return False
    return True


def _was_cleared(reports: Sequence[Witness], policy: Policy, locked: LockedCell, suite: Suite) -> bool:
    """Whether *reports*, of one earlier image, satisfy the gate for that image by the suite that made them.

    What that suite held is not known here: they are asked for every check of today's. Nor is that image's
    lock: the facts are those of *locked*, and its own image.json is taken for the one that *locked* gives.
    """
    account = (IMAGES / tag_of(locked.resolution) / "image.json").read_bytes()
    told = {"image_json_sha256": hashlib.sha256(account).hexdigest()}
    theirs = [
        replace(one, report=replace(one.report, host=json.dumps(json.loads(one.report.host) | told)))
        for one in reports
    ]
    image, made_by = reports[0].report.image, max(reports, key=lambda one: one.report.when or "").report.suite
    return image is not None and _cleared(theirs, policy, locked, replace(suite, digest=made_by), image)


def _failed(one: Witness) -> list[str]:
    """Ids of checks."""
    return sorted(finding.id for finding in one.report.findings if finding.outcome == "failed")


def _counts(squares: Sequence[Square]) -> str:
    kinds: Mapping[str, int] = Counter(square.answer.status.value for square in squares)
    told = ", ".join(f"{kinds[status.value]} {status.value}" for status in Status)
    locked = sum(square.digest is not None for square in squares)
    now = sum(square.now is not None and square.now.proved for square in squares)
    before = sum((seen := square.told_of_earlier()) is not None and seen.proved for square in squares)
    return (
        f"{len(squares)} cells (runtime, debian12): {told}. {locked} built from their committed locks (bold),"
        f" {now} of them proved on GPUs as they are now, {before} in an earlier image."
    )


def _drivers(cuda: str, squares: Iterable[Square]) -> str:
    floors = {
        square.answer.min_driver
        for square in squares
        if square.answer.cell.cuda == cuda and square.answer.min_driver
    }
    return "driver ≥ " + " or ".join(sorted(floors))
