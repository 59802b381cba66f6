"""Resolutions, locks and docs/proofs → the grid in README.md: of each cell what it is and what was proved."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln import attestation, hosts, signature
from torchkiln import facts as facts_of
from torchkiln import matrix as matrix_of
from torchkiln.errors import GateRefused
from torchkiln.foretold import foretold
from torchkiln.gate import clear
from torchkiln.matrix import Policy
from torchkiln.nouns import Digest, LockedCell, Resolution, Source, Status, Witness
from torchkiln.planning import plan_cell
from torchkiln.resolve import resolve
from torchkiln.select import Selection, select
from torchkiln.suite import Suite, load_suite
from torchkiln.tags import tag_of

ROOT = Path(__file__).resolve().parent.parent
IMAGES, PROOFS = ROOT / "images", ROOT / "docs/proofs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """A cell of the grid. *digest*: the image that its committed lock gives; None: there is no lock."""

    answer: Resolution
    digest: Digest | None = None
    reports: Sequence[Witness] = ()  # of that digest
    proved: bool = False  # the gate clears that digest for them

    def text(self) -> str:
        """For a table; bold where a lock is committed."""
        build = self.answer.build
        if build is None:
            return "unavailable"
        kind = "native" if self.answer.status is Status.NATIVE else f"minor-compat, built with {build.cuda}"
        if self.digest is None:
            return f"{kind}, lockable elsewhere{' ¹' if build.source is Source.PYTORCH else ''}"
        return f"**{kind}**<br>{self._seen()}"

    def _seen(self) -> str:
        """By the report that tells of most checks, the youngest of these; by one that failed, if any did."""
        if not self.reports:
            return "built"
        failed = [one for one in self.reports if _failed(one)]
        best = max(failed or self.reports, key=lambda one: (len(one.report.findings), one.report.when or ""))
        gpus, day = hosts.kinds(json.loads(best.report.host)), (best.report.when or "").partition("T")[0]
        name = best.name.removesuffix(".dsse.json").removesuffix(".json")
        what = "proved on" if self.proved else "built; not all checks ran, but passed, on"
        if failed:
            what = f"built; {', '.join(f'`{name}`' for name in _failed(best))} failed on"
        short = (self.digest or "").removeprefix("sha256:")[:12]
        return f"{what} {gpus}, [{day}](docs/proofs/{name}.json), `{short}`"


def grid() -> str:
    """The runtime cells of the default OS, a row a torch."""
    facts = facts_of.load()
    matrix = matrix_of.read(ROOT / "matrix.yaml", facts)
    known, suite = proofs(PROOFS), load_suite(ROOT / "smoke_tests")
    squares: dict[tuple[str, str], Square] = {}
    for cell in select(Selection(), matrix):
        answer = resolve(cell, matrix, facts)
        squares[cell.torch, cell.cuda] = Square(answer=answer)
        if answer.build and (IMAGES / tag_of(answer) / "lock.json").is_file():
            plan = plan_cell(cell, matrix, facts, images=IMAGES)
            digest = foretold(plan)
            mine = [one for one in known if one.report.image == digest]
            squares[cell.torch, cell.cuda] = Square(
                answer=answer,
                digest=digest,
                reports=mine,
                proved=digest is not None and _cleared(mine, matrix.policy, plan.locked, suite, digest),
            )
    head = ["torch", *(f"CUDA {cuda}<br>{_drivers(cuda, squares.values())}" for cuda in matrix.cuda)]
    rows = [
        [f"**{torch}**", *(squares[torch, cuda].text() for cuda in matrix.cuda)]
        for torch in reversed(matrix.torch)
    ]
    return table(head, rows) + f"\n{_counts(list(squares.values()))}\n"


def _cleared(
    reports: Sequence[Witness], policy: Policy, locked: LockedCell, suite: Suite, digest: Digest
) -> bool:
    try:
        clear(reports, policy, locked, suite, image=digest)
    except GateRefused:
        return False
    return True


def _failed(one: Witness) -> list[str]:
    """Ids of checks."""
    return sorted(finding.id for finding in one.report.findings if finding.outcome == "failed")


def proofs(folder: Path) -> list[Witness]:
    """The signed reports of GPU runs in *folder*, each by the key that is kept beside it."""
    found = []
    for key in sorted(folder.glob("*.pub.pem")):
        trusted = [signature.public_key(key.read_bytes(), where=key.name)]
        for path in sorted(folder.glob(f"{key.name.removesuffix('.pub.pem')}*.dsse.json")):
            witness = attestation.read(path, trusted)
            if hosts.gpus(json.loads(witness.report.host)):
                found.append(witness)
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown has it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _counts(squares: Sequence[Square]) -> str:
    kinds: Mapping[str, int] = Counter(square.answer.status.value for square in squares)
    told = ", ".join(f"{kinds[status.value]} {status.value}" for status in Status)
    locked = sum(square.digest is not None for square in squares)
    proved = sum(square.proved for square in squares)
    return (
        f"{len(squares)} cells (runtime, debian12): {told}. {locked} built from their committed locks (bold),"
        f" {proved} of them proved on GPUs."
    )


def _drivers(cuda: str, squares: Iterable[Square]) -> str:
    floors = {
        square.answer.min_driver
        for square in squares
        if square.answer.cell.cuda == cuda and square.answer.min_driver
    }
    return "driver ≥ " + " or ".join(sorted(floors))
