"""Resolutions, locks and docs/proofs → the grid in README.md: of each cell what it is and what was proved."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.markdown import table
from tools.kept import IMAGES, PROOFS, latest_earlier, present, proofs, same_wheels, short, without_gpus
from torchkiln.gate.cell_state import CellRecord, State, cleared, saw_gpus, state
from torchkiln.lock.lock import load_locked
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.public_record import recorded
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source, Status
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.smoke import hosts
from torchkiln.smoke.suite import Suite, load_suite
from torchkiln.util.places import ROOT

_HERE = (State.PROVED, State.BUILT)
# Beside runtime on debian12: what a cell is marked with where it can be had so.
_MARKS = {("runtime", "ubuntu22.04"): "²", ("devel", "debian12"): "³"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the reports of one image tell, at least one."""

    reports: Sequence[SignedReport]
    proved: bool  # they satisfy the gate, or did: see `_was_cleared`

    @property
    def passed(self) -> bool:
        """Whether any report holds nothing but what passed."""
        return any(one.report.verdict == "pass" for one in self.reports)

    @property
    def on_gpus(self) -> bool:
        """Whether any report is of a run on GPUs."""
        return any(map(saw_gpus, self.reports))

    def now(self) -> str:
        """For the image that the lock gives today."""
        if failed := self._failed():
            return f"built; {failed} failed {self._where()}"
        return f"built and proved {self._where()}" if self.proved else f"built; {self._some()}"

    def earlier(self, image: str) -> str:
        """For another, which is called *image*: never that the present one was proved."""
        if failed := self._failed():
            return f"in {image} {failed} failed {self._where()}"
        return (
            f"{image} was proved {self._where()}" if self.proved else f"in {image} {self._some(' of today')}"
        )

    def _some(self, which: str = "") -> str:
        """Of a run that is no proof, or not on GPUs."""
        if self.on_gpus:
            return f"not all checks{which} ran, but passed, {self._where()}"
        count = sum(finding.outcome == "passed" for finding in self._best().report.findings)
        return f"{count} checks passed {self._where()}"

    def _failed(self) -> str:
        return ", ".join(f"`{name}`" for name in _failed(self._best()))

    def _best(self) -> SignedReport:
        """The report that tells of most checks, the youngest of these; one that failed, if any did."""
        failed = [one for one in self.reports if _failed(one)]
        return max(failed or self.reports, key=lambda one: (len(one.report.findings), one.report.when or ""))

    def _where(self) -> str:
        """GPUs, day, report and image."""
        best = self._best()
        gpus, day = hosts.kinds(json.loads(best.report.host)), (best.report.when or "").partition("T")[0]
        where = f"on {gpus}" if gpus else "without a GPU"
        return f"{where}, [{day or 'report'}](docs/proofs/{best.name}), `{short(best.report)}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """A cell of the grid."""

    answer: Resolution
    state: State
    now: Seen | None = None  # of the image that its lock gives
    earlier: Seen | None = None  # of the image before it
    same_wheels: bool = False  # that one had the wheels of the lock
    recorded: bool = False  # public record tells the hash of its torch wheel
    others: Mapping[tuple[str, str], State]  # the same torch and CUDA in other flavors and systems

    def text(self) -> str:
        """For a table; bold where a lock is committed."""
        build = self.answer.build
        if build is None or self.state is State.UNAVAILABLE:
            return "unavailable" + self._marks()
        kind = "native" if self.answer.status is Status.NATIVE else f"minor-compat, built with {build.cuda}"
        if self.state in (State.ELSEWHERE, State.LOCKABLE):
            mark = " ¹" if build.source is Source.PYTORCH else ""
            pinned = " ⁴" if self.recorded else ""
            return f"{kind}, {self.state.value}{mark}{pinned}{self._marks()}"
        mark = " ¹" if self.state is State.RECORDED else ""
        return f"**{kind}**{mark}{self._marks()}<br>{self._seen()}"

    def told_of_earlier(self) -> Seen | None:
        """What is worth telling of an earlier image: nothing once as much is known of the present one."""
        if self.now is None or not self.now.passed:
            return self.earlier
        return self.earlier if self.earlier and self.earlier.on_gpus and not self.now.on_gpus else None

    def _marks(self) -> str:
        told = [
            f"**{mark}**" if self.others[kind] in _HERE else mark
            for kind, mark in _MARKS.items()
            if self.others.get(kind, State.UNAVAILABLE) is not State.UNAVAILABLE
        ]
        return "".join(f" {mark}" for mark in told)

    def _seen(self) -> str:
        told = self.now.now() if self.now else self.state.value
        if (earlier := self.told_of_earlier()) is None:
            return told
        image = "an earlier image of this lock's wheels" if self.same_wheels else "an earlier image"
        return f"{told}; {earlier.earlier(image)}"


def grid() -> str:
    """The runtime cells of the default OS, a row a torch; those beyond their product, a row each."""
    facts = facts_of.load()
    matrix = matrix_of.read(ROOT / "matrix.yaml", facts)
    known, suite = [*proofs(PROOFS), *without_gpus(PROOFS)], load_suite(ROOT / "smoke_tests")
    answers = {cell: resolve(cell, matrix, facts) for cell in select(Selection(every=True), matrix)}
    states = {
        cell: state(answer, _kept(answer, known), matrix.policy, suite) for cell, answer in answers.items()
    }
    squares = {
        (cell.torch, cell.cuda): _square(answers[cell], states, known, matrix.policy, suite)
        for cell in select(Selection(), matrix)
    }
    head = ["torch", *(f"CUDA {cuda}<br>{_drivers(cuda, squares.values())}" for cuda in matrix.cuda)]
    rows = [
        [f"**{torch}**", *(squares[torch, cuda].text() for cuda in matrix.cuda)]
        for torch in reversed(matrix.torch)
    ]
    told = table(head, rows)
    if matrix.beyond:
        told += "\nBeyond it, a line each in `matrix.yaml`:\n\n" + table(
            ["torch", "CUDA", ""],
            ([f"**{pair[0]}**", pair[1], squares[pair].text()] for pair in reversed(matrix.beyond)),
        )
    if devel := [
        replace(_square(answers[cell], states, known, matrix.policy, suite), others={})
        for cell in select(Selection(flavor=("devel",)), matrix)
        if states[cell] in (State.PROVED, State.BUILT)
    ]:
        told += "\nWith `--flavor devel`, built:\n\n" + table(
            ["torch", "CUDA", ""],
            ([f"**{one.answer.cell.torch}**", one.answer.cell.cuda, one.text()] for one in devel),
        )
    return told + f"\n{_counts(list(squares.values()), states)}\n"


def _kept(answer: Resolution, known: Sequence[SignedReport]) -> CellRecord | None:
    """What is kept of a cell; None: it has no lock."""
    tag = tag_of(answer) if answer.build else ""
    if not tag or not (IMAGES / tag / "lock.json").is_file():
        return None
    mine = tuple(one for one in known if one.report.tag == tag)
    return CellRecord(locked=load_locked(IMAGES, tag), image=present(tag), reports=mine)


def _square(
    answer: Resolution,
    states: Mapping[Cell, State],
    known: Sequence[SignedReport],
    policy: Policy,
    suite: Suite,
) -> Square:
    cell = answer.cell
    others = {
        (one.flavor, one.os): what
        for one, what in states.items()
        if (one.torch, one.cuda) == (cell.torch, cell.cuda) and one != cell
    }
    here, kept = states[cell], _kept(answer, known)
    if kept is None or here is State.UNAVAILABLE:
        known_wheel = answer.build and recorded(facts_of.load(), answer.build, cell.python)
        return Square(answer=answer, state=here, recorded=bool(known_wheel), others=others)
    earlier = [one for one in kept.reports if one not in kept.present]
    before = latest_earlier([one for one in earlier if saw_gpus(one)] or earlier, kept.image)
    was_proved = bool(before) and _was_cleared(before, policy, kept.locked, suite)
    return Square(
        answer=answer,
        state=here,
        now=Seen(reports=kept.present, proved=here is State.PROVED) if kept.present else None,
        earlier=Seen(reports=before, proved=was_proved) if before else None,
        same_wheels=bool(before) and all(same_wheels(one.report, kept.locked) for one in before),
        others=others,
    )


def _was_cleared(reports: Sequence[SignedReport], policy: Policy, locked: LockedCell, suite: Suite) -> bool:
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
    return image is not None and cleared(theirs, policy, locked, replace(suite, digest=made_by), image)


def _failed(one: SignedReport) -> list[str]:
    """Ids of checks."""
    return sorted(finding.id for finding in one.report.findings if finding.outcome == "failed")


def _counts(squares: Sequence[Square], states: Mapping[Cell, State]) -> str:
    """Of the cells shown, by state; then of the other flavors and systems."""
    kinds = Counter(square.answer.status.value for square in squares)
    told = ", ".join(f"{kinds[status.value]} {status.value}" for status in Status)
    before = sum((seen := square.told_of_earlier()) is not None and seen.proved for square in squares)
    lines = [
        f"{len(squares)} cells (runtime, debian12): {told}. {_by_state(square.state for square in squares)};"
        f" {before} proved in an earlier image."
    ]
    for kind in dict.fromkeys((cell.flavor, cell.os) for cell in states):
        if kind != ("runtime", "debian12"):
            of = [what for cell, what in states.items() if (cell.flavor, cell.os) == kind]
            lines.append(f"{kind[0]} on {kind[1]}: {_by_state(of)}.")
    return "  \n".join(lines)


def _by_state(states: Iterable[State]) -> str:
    counted = Counter(states)
    return ", ".join(f"{counted[one]} {one.value}" for one in State if counted[one])


def _drivers(cuda: str, squares: Iterable[Square]) -> str:
    floors = {
        square.answer.min_driver
        for square in squares
        if square.answer.cell.cuda == cuda and square.answer.min_driver
    }
    return "driver ≥ " + " or ".join(sorted(floors))
