"""Draw the grid in docs/grid.md: for each cell its status, and what was built and proved."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.markdown import table
from tools.kept import (
    IMAGES,
    PROOFS,
    as_declared_by,
    earlier_locks,
    latest_earlier,
    present,
    proofs,
    short,
    without_gpus,
)
from torchkiln.gate.cell_state import CellRecord, State, cleared, record_of, saw_gpus, state
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.public_record import recorded
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import DEFAULT_FLAVOR, Selection, select
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source, Status
from torchkiln.model.lock import LockedCell
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.report import SignedReport
from torchkiln.smoke import hosts
from torchkiln.smoke.suite import Suite, load_suite
from torchkiln.util.places import ROOT


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSummary:
    """The reports of one image, at least one."""

    reports: Sequence[SignedReport]
    proved: bool  # the reports satisfy the gate, or did when they were made: see `_was_cleared`

    @property
    def passed(self) -> bool:
        """Whether the verdict of any report is `pass`."""
        return any(signed.report.verdict == "pass" for signed in self.reports)

    @property
    def on_gpus(self) -> bool:
        """Whether any report is of a run on GPUs."""
        return any(map(saw_gpus, self.reports))

    def now(self) -> str:
        """The text for the image that the lock gives today."""
        if failed := self._failed():
            return f"built; {failed} failed {self._where()}"
        if self.proved and self.on_gpus:
            return f"built and proved {self._where()}"
        return f"built and proved; {self._some()}" if self.proved else f"built; {self._some()}"

    def earlier(self, image: str) -> str:
        """The text for an earlier image, which is called *image*."""
        if failed := self._failed():
            return f"in {image} {failed} failed {self._where()}"
        return f"{image} was proved {self._where()}" if self.proved else f"in {image} {self._some()}"

    def _some(self) -> str:
        """The text for reports that do not satisfy the gate."""
        findings = self._best().report.findings
        passed = sum(finding.outcome == "passed" for finding in findings)
        skipped = [finding for finding in findings if finding.outcome == "skipped"]
        tiers = " and ".join(map(str, sorted({finding.tier for finding in skipped})))
        rest = f" (skipped: {len(skipped)} of tier {tiers})" if skipped else ""
        return f"{passed} checks passed{rest} {self._where()}"

    def _failed(self) -> str:
        return ", ".join(f"`{name}`" for name in _failed(self._best()))

    def _best(self) -> SignedReport:
        """The report with the most checks, the latest of several. If reports failed, one of these."""
        failed = [signed for signed in self.reports if _failed(signed)]
        return max(
            failed or self.reports, key=lambda signed: (len(signed.report.findings), signed.report.when or "")
        )

    def _where(self) -> str:
        """GPUs, date, report and image."""
        best = self._best()
        gpus, day = hosts.kinds(json.loads(best.report.host)), (best.report.when or "").partition("T")[0]
        where = f"on {gpus}" if gpus else "without a GPU"
        return f"{where}, [{day or 'report'}](proofs/{best.name}), `{short(best.report)}`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """A cell of the grid."""

    answer: Resolution
    state: State
    now: ReportSummary | None = None  # reports of the image that the lock gives today
    earlier: ReportSummary | None = None  # reports of the latest earlier image
    same_stack: bool = False  # whether the earlier image had the GPU stack of the lock
    recorded: bool = False  # whether a public record has the hash of the cell's torch wheel

    def text(self) -> str:
        """The text for a table; bold if a lock is committed."""
        build = self.answer.build
        if build is None or self.state is State.UNAVAILABLE:
            return "unavailable"
        kind = "native" if self.answer.status is Status.NATIVE else f"minor-compat, built with {build.cuda}"
        if self.state in (State.ELSEWHERE, State.LOCKABLE):
            mark = " ¹" if build.source is Source.PYTORCH else ""
            pinned = " ²" if self.recorded else ""
            return f"{kind}, {self.state.value}{mark}{pinned}"
        mark = " ¹" if self.state is State.RECORDED else ""
        return f"**{kind}**{mark}<br>{self._seen()}"

    def earlier_shown(self) -> ReportSummary | None:
        """The reports of the earlier image, unless the reports of the present image prove as much."""
        if self.now is None or not self.now.passed:
            return self.earlier
        return self.earlier if self.earlier and self.earlier.on_gpus and not self.now.on_gpus else None

    def _seen(self) -> str:
        text = self.now.now() if self.now else self.state.value
        if (earlier := self.earlier_shown()) is None:
            return text
        image = "an earlier image³" if self.same_stack else "an earlier image"
        return f"{text}; {earlier.earlier(image)}"


def grid() -> str:
    """Tables of the runtime cells of the default OS, of the cells in `beyond`, and of built devel cells."""
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
    text = table(head, rows)
    if matrix.beyond:
        text += "\nCells outside this product of versions (`beyond` in `matrix.yaml`):\n\n" + table(
            ["torch", "CUDA", ""],
            ([f"**{pair[0]}**", pair[1], squares[pair].text()] for pair in reversed(matrix.beyond)),
        )
    for flavor, os in _other_kinds(states):
        made = [
            _square(answers[cell], states, known, matrix.policy, suite)
            for cell in select(Selection(flavor=(flavor,), os=(os,)), matrix)
            if states[cell] in (State.PROVED, State.BUILT)
        ]
        if made:
            text += f"\nBuilt with `{_options(flavor, os)}`:\n\n" + table(
                ["torch", "CUDA", ""],
                (
                    [f"**{square.answer.cell.torch}**", square.answer.cell.cuda, square.text()]
                    for square in made
                ),
            )
    return text + f"\n{_counts(list(squares.values()), states)}\n"


def _kept(answer: Resolution, known: Sequence[SignedReport]) -> CellRecord | None:
    """The lock, image and reports of a cell; None: it has no lock."""
    tag = tag_of(answer) if answer.build else ""
    if not tag or not (IMAGES / tag / "lock.json").is_file():
        return None
    reports = tuple(signed for signed in known if signed.report.tag == tag)
    return record_of(load_locked(IMAGES, tag), present(tag), reports, earlier_locks(PROOFS))


def _square(
    answer: Resolution,
    states: Mapping[Cell, State],
    known: Sequence[SignedReport],
    policy: Policy,
    suite: Suite,
) -> Square:
    cell = answer.cell
    here, kept = states[cell], _kept(answer, known)
    if kept is None or here is State.UNAVAILABLE:
        known_wheel = answer.build and recorded(facts_of.load(), answer.build, cell.python)
        return Square(answer=answer, state=here, recorded=bool(known_wheel))
    earlier = [signed for signed in kept.reports if signed not in kept.present]
    before = latest_earlier([signed for signed in earlier if saw_gpus(signed)] or earlier, kept.image)
    was_proved = bool(before) and _was_cleared(before, policy, kept.locked, suite)
    return Square(
        answer=answer,
        state=here,
        now=ReportSummary(reports=kept.present, proved=here is State.PROVED) if kept.present else None,
        earlier=ReportSummary(reports=before, proved=was_proved) if before else None,
        same_stack=bool(before) and before[0].report.image in [other.image for other in kept.earlier],
    )


def _was_cleared(reports: Sequence[SignedReport], policy: Policy, locked: LockedCell, suite: Suite) -> bool:
    """Whether *reports* of one earlier image satisfy the gate for that image, with the suite that they used.

    The contents of that suite are unknown, so all checks of today's suite are required, with the values and
    bounds in the reports. The lock of that image is unknown, too, so facts and image.json of *locked* are
    used.
    """
    image_json = (IMAGES / tag_of(locked.resolution) / "image.json").read_bytes()
    assumed = {"image_json_sha256": hashlib.sha256(image_json).hexdigest()}
    adapted = [
        replace(
            signed, report=replace(signed.report, host=json.dumps(json.loads(signed.report.host) | assumed))
        )
        for signed in reports
    ]
    image = reports[0].report.image
    return image is not None and cleared(adapted, policy, locked, as_declared_by(reports, suite), image)


def _failed(signed: SignedReport) -> list[str]:
    """The ids of the failed checks."""
    return sorted(finding.id for finding in signed.report.findings if finding.outcome == "failed")


def _counts(squares: Sequence[Square], states: Mapping[Cell, State]) -> str:
    """The numbers of cells by state: first the cells in the table, then those of other flavors and
    systems."""
    kinds = Counter(square.answer.status.value for square in squares)
    statuses = ", ".join(f"{kinds[status.value]} {status.value}" for status in Status)
    before = sum((earlier := square.earlier_shown()) is not None and earlier.proved for square in squares)
    shown = _by_state(square.state for square in squares)
    lines = [
        f"{len(squares)} cells (runtime, debian12): {statuses}. {shown}; {before} proved in an earlier image."
    ]
    for kind in _other_kinds(states):
        found = [state for cell, state in states.items() if (cell.flavor, cell.os) == kind]
        lines.append(f"{kind[0]} on {kind[1]}: {_by_state(found)}.")
    return "  \n".join(lines)


def _other_kinds(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """The flavors and systems of *cells*, except for runtime and debian12, which have a table."""
    kinds = dict.fromkeys((cell.flavor, cell.os) for cell in cells)
    return [kind for kind in kinds if kind != (DEFAULT_FLAVOR, DEFAULT_OS)]


def _options(flavor: str, os: str) -> str:
    """The options of `ls` that select the cells of *flavor* and *os*."""
    chosen = [f"--flavor {flavor}"] if flavor != DEFAULT_FLAVOR else []
    return " ".join((*chosen, *([f"--os {os}"] if os != DEFAULT_OS else [])))


def _by_state(states: Iterable[State]) -> str:
    counted = Counter(states)
    return ", ".join(f"{counted[state]} {state.value}" for state in State if counted[state])


def _drivers(cuda: str, squares: Iterable[Square]) -> str:
    minimums = {
        square.answer.min_driver
        for square in squares
        if square.answer.cell.cuda == cuda and square.answer.min_driver
    }
    return "driver ≥ " + " or ".join(sorted(minimums))
