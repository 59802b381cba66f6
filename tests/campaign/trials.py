"""Run a disturbance, record its effects and leftovers, and check that the next run recovers."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.oracle import Oracle, Truth, fingerprint
from tests.campaign.scene import Ran, Scene, Trial
from tests.servers.index_server import Faults

STARTS = ("empty", "part", "wheels", "layers")  # the initial content of the cache
PACE = 40e6  # bytes a second on each connection, so that a download can be interrupted


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """A fault that disturbs a run, and the expected message.

    `codes` are the accepted exit codes, `sentence` is a pattern that stderr must match.
    """

    group: str
    name: str
    codes: tuple[int, ...]
    sentence: str
    run: Callable[[Trial], Ran]
    start: str = "empty"
    detail: dict[str, Any] = field(default_factory=dict)
    around: Callable[[Trial], AbstractContextManager[None]] = lambda trial: nullcontext()  # around both runs
    undo: Callable[[Trial], None] = lambda trial: None  # called before the next run
    late: Callable[[Ran], bool] = lambda ran: False  # whether the disturbance came too late


@dataclass(kw_only=True)
class Record:
    """The result of a disturbance; `wrong` lists the faults."""

    group: str
    name: str
    start: str
    detail: dict[str, Any]
    code: int
    sentence: str
    seconds: float
    flying: dict[str, int]
    late: bool = False
    halves: int = 0  # number of new partial downloads
    leftovers: int = 0  # leftover files of work in progress
    cached: int = 0  # bytes of wheels in the cache at the start of the next run
    fetched: int = 0  # bytes of wheels that the next run requested
    again: int = 0  # bytes in the cache that the next run requested again
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The record, for the log."""
        return asdict(self)


class Reference:
    """The result of an undisturbed build, and initial caches."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.trial = scene.trial("reference")
        with self.trial.server:
            first = self.trial.run()  # this run writes the .pyc files of torchkiln and pip
            if first.code:
                raise RuntimeError(f"the undisturbed build failed: {first.err}")
            shutil.rmtree(self.trial.cache)
            shutil.rmtree(self.trial.output)
            ran = self.trial.run()
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
        """Faults of the undisturbed build; there must be none before and after the campaign."""
        return Oracle(self.truth, self.trial.cache, self.trial.output).healed()

    def measure(self) -> None:
        """Measure the duration and the operations of a run for each initial cache in STARTS."""
        for start in STARTS:
            with self.scene.trial(f"measured-{start}") as trial:
                self.prepare(trial, start)
                ran = trial.run()
                self.seconds[start], self.counts[start] = ran.seconds, trial.counted()
                if ran.code or ran.out != self.truth.manifest:
                    raise RuntimeError(f"from {start}: {ran}")

    def prepare(self, trial: Trial, start: str) -> None:
        """Fill the cache of *trial*. Complete files are hard links, because torchkiln never changes them."""
        trial.server.faults.pace = PACE
        if start == "empty":
            return
        cached = {"part": ("wheels",), "wheels": ("wheels", "interpreters")}.get(start, _ALL)
        for part in cached:
            shutil.copytree(self.trial.cache / part, trial.cache / part, copy_function=os.link)
        if start == "part":  # the first half of the big wheels, and all of the small ones
            for path in (trial.cache / "wheels").glob("*/*"):
                data = path.read_bytes()
                if len(data) > 1_000_000:
                    path.unlink()
                    path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
        if start in ("layers", "network"):
            for path in list(_layers(trial.cache, ("torch", "small_00"))):
                path.unlink()
        if start == "network":
            for path in (trial.cache / "wheels").glob("*/*"):
                if path.name.startswith(("torch", "small_")):
                    path.unlink()


_ALL = ("wheels", "interpreters", "blobs", "bytecode", "records/layers")


def _layers(cache: Path, wheels: Iterable[str]) -> Iterator[Path]:
    """The records and blobs of the layers that contain *wheels*, found by the paths in the layers."""
    for record in list((cache / "records/layers").iterdir()):
        blob = cache / "blobs/sha256" / json.loads(record.read_bytes())["digest"].removeprefix("sha256:")
        with gzip.open(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            names = {member.name for member in tar}
        if any(f"/{wheel}/__init__.py" in name for wheel in wheels for name in names):
            yield from (record, blob)


def provoke(reference: Reference, name: str, disturbance: Disturbance, *, heal: bool = True) -> Record:
    """Run a build with *disturbance*, in a new cache and output, and then the build that must recover."""
    with reference.scene.trial(name) as trial:
        reference.prepare(trial, disturbance.start)
        with disturbance.around(trial):
            oracle = Oracle(reference.truth, trial.host_path(trial.cache), trial.host_path(trial.output))
            ran = disturbance.run(trial)
            record = _judge(disturbance, ran, trial, oracle)
            disturbance.undo(trial)
            trial.server.faults = Faults()
            if ran.code == 0:  # the build is complete, so no work in progress may be left
                record.wrong += oracle.healed()
            elif heal:
                _heal(record, trial, oracle, reference.truth)
    return record


def _judge(disturbance: Disturbance, ran: Ran, trial: Trial, oracle: Oracle) -> Record:
    late = disturbance.late(ran)
    record = Record(
        group=disturbance.group,
        name=disturbance.name,
        start=disturbance.start,
        detail=disturbance.detail,
        code=ran.code,
        sentence=_last_message(ran.err, trial),
        seconds=round(ran.seconds, 2),
        flying=ran.flying,
        late=late,
        halves=0 if disturbance.start == "part" else _halves(oracle),
        leftovers=len(oracle.leftovers()),
        wrong=[*oracle.faults(), *(f"survivor: {command}" for command in ran.left)],
    )
    if not late and ran.code not in disturbance.codes:
        record.wrong.append(f"exit code {ran.code}, not {disturbance.codes}")
    # A negative code means that the signal killed the process before it could print a message.
    if not late and ran.code >= 0 and not re.search(disturbance.sentence, ran.err):
        record.wrong.append(f"sentence: no match for {disturbance.sentence!r}")
    if record.wrong or "Traceback" in ran.err:
        record.wrong.append(f"its output: {ran.err[-3000:]}")
    if ran.code == 0 and ran.out != oracle.truth.manifest:
        record.wrong.append(f"digest: {ran.out}")
    return record


def _heal(record: Record, trial: Trial, oracle: Oracle, truth: Truth) -> None:
    """Run the build again: it must give the right digest, clean up, and not request bytes in the cache."""
    have = _bytes_there(oracle.cache, truth)
    before = len(trial.server.sent)
    ran = trial.run()
    record.cached = sum(have.values())
    if ran.code or ran.out != truth.manifest:
        record.wrong.append(f"next run: code {ran.code}, {ran.out}: {ran.err[-3000:]}")
    record.wrong += [f"next run: {fault}" for fault in oracle.healed()]
    record.wrong += [f"next run: survivor: {command}" for command in ran.left]
    for filename, data in truth.wheels.items():
        responses = [sent for sent in trial.server.sent[before:] if sent.path.endswith("/" + filename)]
        # Only ranges without an end continue a download. Requests for a wheel's zip directory have an end.
        came = sum(sent.count for sent in responses if sent.requested.endswith("-") or not sent.requested)
        record.fetched += came
        record.again += max(came - (len(data) - have[filename]), 0)
    if record.again:
        record.wrong.append(f"next run: {record.again} bytes of wheels were downloaded again")


def _halves(oracle: Oracle) -> int:
    parts = {path.name.removesuffix(".part"): path for path in oracle.cache.glob("wheels/*/*.part")}
    return sum(path.stat().st_size < len(oracle.truth.wheels[name]) for name, path in parts.items())


def _bytes_there(cache: Path, truth: Truth) -> dict[str, int]:
    """The number of correct bytes of each wheel in the cache."""
    found = dict.fromkeys(truth.wheels, 0)
    for path in cache.glob("wheels/*/*"):
        name = path.name.removesuffix(".part")
        if name in found and truth.wheels[name].startswith(path.read_bytes()):
            found[name] = max(found[name], path.stat().st_size)
    return found


def _last_message(err: str, trial: Trial) -> str:
    """The last message for the user, without this machine's folders and ports."""
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    message = "\n".join(lines) or (err.splitlines() or [""])[-1]
    message = message.replace(str(trial.folder), "…").replace(str(trial.scene.folder), "…")
    return re.sub(r"127\.0\.0\.1:\d+", "INDEX", message)


def provoke_all(
    reference: Reference, disturbances: Iterable[Disturbance], *, jobs: int, heal: bool = True
) -> list[Record]:
    """Provoke each of *disturbances*, *jobs* at a time; returns the records in that order."""
    numbers = itertools.count()

    def one(disturbance: Disturbance) -> Record:
        return provoke(reference, f"{disturbance.group}-{next(numbers)}", disturbance, heal=heal)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, disturbances))
