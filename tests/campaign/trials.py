"""A disturbance → what it did, what it left, and whether the next run makes good of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.oracle import Oracle, Truth, fingerprint
from tests.campaign.scene import Ran, Scene, Trial

STARTS = ("empty", "part", "wheels", "layers")  # what the cache holds beforehand
PACE = 40e6  # bytes a second on each connection, so that there is a download to be cut


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """One way to trouble a run, and what the run must then say.

    codes: exit codes that are right; 0 where the run must get over it. sentence: what stderr must match.
    """

    group: str
    name: str
    codes: tuple[int, ...]
    sentence: str
    run: Callable[[Trial], Ran]
    start: str = "empty"
    detail: dict[str, Any] = field(default_factory=dict)
    undo: Callable[[Trial], None] = lambda trial: None
    late: Callable[[Ran], bool] = lambda ran: False  # whether it never came to the disturbance


@dataclass(kw_only=True)
class Record:
    """What came of a disturbance; `wrong` is empty when all is as it must be."""

    group: str
    name: str
    start: str
    detail: dict[str, Any]
    code: int
    sentence: str
    seconds: float
    flying: dict[str, int]
    late: bool = False
    leftovers: int = 0  # files of work in progress that it left
    kept: int = 0  # bytes of wheels that the cache held when the next run began
    fetched: int = 0  # bytes of wheels that the next run asked for
    again: int = 0  # bytes that it had and asked for again
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the log."""
        return asdict(self)


class Reference:
    """What an undisturbed build leaves, and caches to begin with."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.trial = scene.trial("reference")
        with _served(self.trial) as trial:
            trial.run()  # warms the byte-code of our own modules and of pip
            shutil.rmtree(trial.cache)
            shutil.rmtree(trial.output)
            ran = trial.run()
        if ran.code:
            raise RuntimeError(f"the undisturbed build failed: {ran.err}")
        cache = self.trial.cache
        (python,) = (cache / "interpreters").iterdir()
        self.truth = Truth(
            wheels=scene.truth,
            manifest=ran.out,
            interpreter=fingerprint(python),
            blobs=frozenset(path.name for path in (cache / "blobs" / "sha256").iterdir()),
        )
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, dict[tuple[str, str], int]] = {}
        if wrong := self.check():
            raise RuntimeError(f"the undisturbed build is wrong: {wrong}")

    def check(self) -> tuple[str, ...]:
        """Faults of the undisturbed build: none at the beginning, and none at the end."""
        return Oracle(self.truth, self.trial.cache, self.trial.output).healed()

    def measure(self) -> None:
        """How long a run takes from each start, and how often it does what."""
        for start in STARTS:
            with self.scene.trial(f"measured-{start}") as trial:
                self.prepare(trial, start)
                ran = trial.run()
                self.seconds[start], self.counts[start] = ran.seconds, trial.counted()
                if ran.code or ran.out != self.truth.manifest:
                    raise RuntimeError(f"from {start}: {ran}")

    def prepare(self, trial: Trial, start: str) -> None:
        """Fill the cache of *trial*. Whole files are hard links: a store never writes into one."""
        trial.server.faults.pace = PACE
        if start == "empty":
            return
        source = self.trial.cache
        parts = (
            ("wheels",)
            if start == "part"
            else ("wheels", "interpreters", "blobs", "bytecode", "records/urls")
        )
        for part in parts:
            shutil.copytree(source / part, trial.cache / part, copy_function=os.link)
        if start == "part":  # the first half of the big ones, and the small ones whole
            for path in (trial.cache / "wheels").glob("*/*"):
                data = path.read_bytes()
                if len(data) > 1_000_000:
                    path.unlink()
                    path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
        elif start == "wheels":
            shutil.rmtree(trial.cache / "bytecode")
            for path in (trial.cache / "blobs" / "sha256").iterdir():
                path.unlink()
        else:  # all but the two largest layers
            blobs = sorted(
                (trial.cache / "blobs" / "sha256").iterdir(), key=lambda path: -path.stat().st_size
            )
            gone = [path.name for path in blobs[:2]]
            shutil.copytree(source / "records/layers", trial.cache / "records/layers")
            for path in (trial.cache / "records/layers").iterdir():
                if any(name in path.read_text() for name in gone):
                    path.unlink()
            for path in blobs[:2]:
                path.unlink()


def _served(trial: Trial) -> Any:
    """*trial* with its server running; the folder stays."""
    import contextlib

    @contextlib.contextmanager
    def running() -> Any:
        with trial.server:
            yield trial

    return running()


def chain(reference: Reference, name: str, disturbances: Sequence[Disturbance]) -> list[Record]:
    """All of *disturbances*, one after the other on one cache, and then the run that must make it good.

    What is wrong with that run is laid to the last one.
    """
    records = []
    with reference.scene.trial(name) as trial:
        reference.prepare(trial, disturbances[0].start)
        oracle = Oracle(reference.truth, trial.cache, trial.output)
        for disturbance in disturbances:
            records.append(_disturb(disturbance, trial, oracle))
        _heal(records[-1], trial, oracle, reference.truth)
    return records


def _disturb(disturbance: Disturbance, trial: Trial, oracle: Oracle) -> Record:
    ran = disturbance.run(trial)
    disturbance.undo(trial)
    late = disturbance.late(ran)
    record = Record(
        group=disturbance.group,
        name=disturbance.name,
        start=disturbance.start,
        detail=disturbance.detail,
        code=ran.code,
        sentence=_said(ran.err, trial),
        seconds=round(ran.seconds, 2),
        flying=ran.flying,
        late=late,
        leftovers=len(oracle.leftovers()),
        wrong=[*oracle.faults(), *(f"survivor: {command}" for command in ran.left)],
    )
    if not late and ran.code not in disturbance.codes:
        record.wrong.append(f"exit code {ran.code}, not {disturbance.codes}")
    if not late and not re.search(disturbance.sentence, ran.err):
        record.wrong.append(f"sentence: nothing like {disturbance.sentence!r} in: {ran.err[-2000:]}")
    if "Traceback" in ran.err:
        record.wrong.append(f"traceback: {ran.err[-2000:]}")
    if ran.code == 0 and ran.out != oracle.truth.manifest:
        record.wrong.append(f"digest: {ran.out}")
    return record


def _heal(record: Record, trial: Trial, oracle: Oracle, truth: Truth) -> None:
    """The next run: it succeeds, gives the digest, cleans up, and asks for no byte that is there."""
    have = _bytes_there(trial.cache, truth)
    trial.server.faults.__init__()  # type: ignore[misc]
    before = len(trial.server.sent)
    ran = trial.run()
    record.kept = sum(have.values())
    if ran.code or ran.out != truth.manifest:
        record.wrong.append(f"next run: code {ran.code}, {ran.out}: {ran.err[-2000:]}")
    record.wrong += [f"next run: {fault}" for fault in oracle.healed()]
    record.wrong += [f"next run: survivor: {command}" for command in ran.left]
    for filename, data in truth.wheels.items():
        asked = [sent for sent in trial.server.sent[before:] if sent.path.endswith("/" + filename)]
        # A look at the directory at the end of a wheel names both ends of its range.
        came = sum(sent.count for sent in asked if sent.wanted.endswith("-") or not sent.wanted)
        record.fetched += came
        if came > len(data) - have[filename]:
            record.again += came - (len(data) - have[filename])
    if record.again:
        record.wrong.append(f"next run: {record.again} bytes of wheels came again")


def _bytes_there(cache: Path, truth: Truth) -> dict[str, int]:
    """How much of each wheel is there and right."""
    found = dict.fromkeys(truth.wheels, 0)
    for path in cache.glob("wheels/*/*"):
        name = path.name.removesuffix(".part")
        if name in found and truth.wheels[name].startswith(path.read_bytes()):
            found[name] = max(found[name], path.stat().st_size)
    return found


def _said(err: str, trial: Trial) -> str:
    """What a user reads at the end, without this machine's folders and the ports of the day."""
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    told = "\n".join(lines) or (err.splitlines() or [""])[-1]
    told = told.replace(str(trial.folder), "…").replace(str(trial.scene.folder), "…")
    return re.sub(r"127\.0\.0\.1:\d+", "INDEX", told)


def run_all(
    reference: Reference, chains: Sequence[Sequence[Disturbance]], *, jobs: int, label: str
) -> list[Record]:
    """Every chain, *jobs* at a time, in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda pair: chain(reference, f"{label}-{pair[0]}", pair[1]), enumerate(chains))
        return [record for records in done for record in records]
